import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.LongRunningProcessStatus;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TableView;

/**
 * Topics of states by key with Pulsar's Java clients: written in batches and without, compacted by
 * its admin client, read by consumers, readers and table views.
 *
 * Arguments: the HTTP URL, the service URL. Prints "ok" and the name of each step that is done.
 */
public final class CompactedPeer {
    private static final int WAIT_S = 30;
    private static final int MESSAGES = 400;
    private static final int KEYS = 37;

    interface Step {
        void run(String topic) throws Exception;
    }

    private final PulsarAdmin admin;
    private final PulsarClient client;

    public static void main(String[] args) {
        try {
            new CompactedPeer(args[0], args[1]).run();
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    private CompactedPeer(String httpUrl, String serviceUrl) throws Exception {
        admin = PulsarAdmin.builder().serviceHttpUrl(httpUrl).build();
        client = PulsarClient.builder().serviceUrl(serviceUrl).build();
    }

    private void run() throws Exception {
        step("consumers of batches", topic -> consumers(topic, true));
        step("consumers of single messages", topic -> consumers(topic, false));
        step("readers and what comes later", this::readers);
        step("message ids and seeking", this::seeking);
        step("table views", this::tableViews);
        step("all keys deleted", this::nothingLeft);
        step("a failover subscription", this::failover);
        step("a shared subscription is refused", this::shared);
        step("thresholds", this::thresholds);
    }

    private void step(String name, Step step) throws Exception {
        step.run("persistent://public/default/compacted-" + name.replace(' ', '-'));
        System.out.println("ok " + name);
    }

    private static void same(Object found, Object wanted, String what) {
        if (found == null ? wanted != null : !found.equals(wanted)) {
            throw new AssertionError(what + ": " + found + ", not " + wanted);
        }
    }

    private Producer<byte[]> producer(String topic, boolean batches) throws Exception {
        return client.newProducer().topic(topic).enableBatching(batches)
            .batchingMaxMessages(10).batchingMaxPublishDelay(1, TimeUnit.SECONDS)
            .compressionType(batches ? CompressionType.LZ4 : CompressionType.NONE).create();
    }

    /** Values by key, in the order in which they were published last; what is deleted is left out. */
    private LinkedHashMap<String, String> publish(String topic, boolean batches, int first)
            throws Exception {
        LinkedHashMap<String, String> last = new LinkedHashMap<>();
        try (Producer<byte[]> producer = producer(topic, batches)) {
            for (int number = first; number < first + MESSAGES; number++) {
                String key = "key-" + number * 7 % KEYS;
                String value = number % 19 == 3 ? null : "value " + number;
                byte[] bytes = value == null ? null : value.getBytes(StandardCharsets.UTF_8);
                producer.newMessage().key(key).value(bytes).sendAsync();
                last.remove(key);
                if (value != null) {
                    last.put(key, value);
                }
            }
            producer.newMessage().value("no key".getBytes(StandardCharsets.UTF_8)).sendAsync();
            producer.flush();
        }
        return last;
    }

    private void compact(String topic) throws Exception {
        admin.topics().triggerCompaction(topic);
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        LongRunningProcessStatus told = admin.topics().compactionStatus(topic);
        while (told.status == LongRunningProcessStatus.Status.RUNNING) {
            if (System.nanoTime() > deadline) {
                throw new AssertionError("compaction does not end");
            }
            Thread.sleep(50);
            told = admin.topics().compactionStatus(topic);
        }
        same(told.status, LongRunningProcessStatus.Status.SUCCESS, "status " + told.lastError);
    }

    private static String text(Message<byte[]> message) {
        byte[] data = message.getValue(); // null: the key is deleted
        return data == null ? "" : new String(data, StandardCharsets.UTF_8);
    }

    private Consumer<byte[]> compacted(String topic, String name, SubscriptionType type)
            throws Exception {
        return client.newConsumer().topic(topic).subscriptionName(name).readCompacted(true)
            .subscriptionType(type)
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
    }

    private LinkedHashMap<String, String> received(Consumer<byte[]> consumer, int count)
            throws Exception {
        LinkedHashMap<String, String> found = new LinkedHashMap<>();
        for (int number = 0; number < count; number++) {
            Message<byte[]> message = consumer.receive(WAIT_S, TimeUnit.SECONDS);
            if (message == null) {
                throw new AssertionError("only " + found.size() + " of " + count + " came");
            }
            same(found.put(message.getKey(), text(message)), null, "a key twice");
            consumer.acknowledge(message);
        }
        same(consumer.receive(300, TimeUnit.MILLISECONDS), null, "after the last");
        return found;
    }

    private void consumers(String topic, boolean batches) throws Exception {
        LinkedHashMap<String, String> last = publish(topic, batches, 0);
        compact(topic);
        try (Consumer<byte[]> consumer = compacted(topic, "one", SubscriptionType.Exclusive)) {
            LinkedHashMap<String, String> found = received(consumer, last.size());
            same(new ArrayList<>(found.entrySet()), new ArrayList<>(last.entrySet()), "in order");
        }
        // Compacted again, over what was left the first time; the subscription has read that.
        LinkedHashMap<String, String> later = publish(topic, batches, 5000);
        compact(topic);
        try (Consumer<byte[]> consumer = compacted(topic, "one", SubscriptionType.Exclusive)) {
            same(received(consumer, later.size()), later, "only what is new");
        }
        try (Consumer<byte[]> consumer = compacted(topic, "two", SubscriptionType.Exclusive)) {
            same(received(consumer, later.size()), later, "each key came again: its newest");
        }
    }

    /** How many messages a compacted reader has. */
    private int countOf(String topic) throws Exception {
        int count = 0;
        try (Reader<byte[]> reader = reader(topic)) {
            while (reader.hasMessageAvailable()) {
                reader.readNext(WAIT_S, TimeUnit.SECONDS);
                count++;
            }
        }
        return count;
    }

    private Reader<byte[]> reader(String topic) throws Exception {
        return client.newReader().topic(topic).readCompacted(true)
            .startMessageId(MessageId.earliest).create();
    }

    private void readers(String topic) throws Exception {
        LinkedHashMap<String, String> last = publish(topic, true, 0);
        compact(topic);
        try (Reader<byte[]> reader = reader(topic)) {
            List<String> keys = new ArrayList<>();
            while (reader.hasMessageAvailable()) {
                Message<byte[]> message = reader.readNext(WAIT_S, TimeUnit.SECONDS);
                keys.add(message.getKey());
                same(text(message), last.get(message.getKey()), message.getKey());
            }
            same(keys, new ArrayList<>(last.keySet()), "in order");
            try (Producer<byte[]> producer = producer(topic, false)) {
                producer.newMessage().key("key-1").value("later".getBytes()).send();
            }
            same(text(reader.readNext(WAIT_S, TimeUnit.SECONDS)), "later", "the log goes on");
        }
    }

    private void seeking(String topic) throws Exception {
        LinkedHashMap<String, String> last = publish(topic, true, 0);
        compact(topic);
        List<MessageId> ids = new ArrayList<>();
        List<String> values = new ArrayList<>();
        try (Reader<byte[]> reader = reader(topic)) {
            while (reader.hasMessageAvailable()) {
                Message<byte[]> message = reader.readNext(WAIT_S, TimeUnit.SECONDS);
                ids.add(message.getMessageId());
                values.add(text(message));
            }
            same(values.size(), last.size(), "survivors");
            reader.seek(ids.get(3));
            same(text(reader.readNext(WAIT_S, TimeUnit.SECONDS)), values.get(4), "after it");
        }
        try (Reader<byte[]> inclusive = client.newReader().topic(topic).readCompacted(true)
                .startMessageId(ids.get(5)).startMessageIdInclusive().create()) {
            same(text(inclusive.readNext(WAIT_S, TimeUnit.SECONDS)), values.get(5), "from it on");
        }
        Map<MessageId, String> plain = new HashMap<>();
        try (Reader<byte[]> whole = client.newReader().topic(topic)
                .startMessageId(MessageId.earliest).create()) {
            while (whole.hasMessageAvailable()) {
                Message<byte[]> message = whole.readNext(WAIT_S, TimeUnit.SECONDS);
                plain.put(message.getMessageId(), text(message));
            }
        }
        same(plain.size(), MESSAGES + 1, "the topic stays as it is");
        for (int number = 0; number < ids.size(); number++) {
            same(plain.get(ids.get(number)), values.get(number), "the same id, the same message");
        }
    }

    private void tableViews(String topic) throws Exception {
        LinkedHashMap<String, String> last = publish(topic, true, 0);
        compact(topic);
        try (TableView<byte[]> view =
                client.newTableViewBuilder(Schema.BYTES).topic(topic).create()) {
            same(values(view), last, "the view");
            try (Producer<byte[]> producer = producer(topic, true)) {
                producer.newMessage().key("key-2").value("changed".getBytes()).send();
                producer.newMessage().key("key-4").value(null).send();
            }
            last.put("key-2", "changed");
            last.remove("key-4");
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_S);
            while (!values(view).equals(last) && System.nanoTime() < deadline) {
                Thread.sleep(20);
            }
            same(values(view), last, "what came later");
        }
        compact(topic);
        try (TableView<byte[]> view =
                client.newTableViewBuilder(Schema.BYTES).topic(topic).create()) {
            same(values(view), last, "compacted again");
        }
    }

    private static Map<String, String> values(TableView<byte[]> view) {
        Map<String, String> found = new HashMap<>();
        view.forEach((key, value) -> found.put(key, new String(value, StandardCharsets.UTF_8)));
        return found;
    }

    private void nothingLeft(String topic) throws Exception {
        try (Producer<byte[]> producer = producer(topic, true)) {
            for (int round = 0; round < 2; round++) {
                for (int number = 0; number < 5; number++) {
                    byte[] value = round == 0 ? "v".getBytes() : null;
                    producer.newMessage().key("k" + number).value(value).sendAsync();
                }
            }
            producer.flush();
        }
        compact(topic);
        same(countOf(topic), 0, "messages");
        try (TableView<byte[]> view =
                client.newTableViewBuilder(Schema.BYTES).topic(topic).create()) {
            same(view.size(), 0, "keys");
        }
    }

    private void failover(String topic) throws Exception {
        LinkedHashMap<String, String> last = publish(topic, true, 0);
        compact(topic);
        try (Consumer<byte[]> consumer = compacted(topic, "f", SubscriptionType.Failover)) {
            same(received(consumer, last.size()), last, "as of any other");
        }
    }

    private void shared(String topic) throws Exception {
        admin.topics().createNonPartitionedTopic(topic);
        try {
            compacted(topic, "s", SubscriptionType.Shared).close();
        } catch (Exception refused) {
            return;
        }
        throw new AssertionError("a shared subscription read what is compacted");
    }

    private void thresholds(String topic) throws Exception {
        admin.topics().createNonPartitionedTopic(topic);
        String namespace = "public/default";
        same(admin.namespaces().getCompactionThreshold(namespace), null, "nothing said");
        admin.namespaces().setCompactionThreshold(namespace, 100L << 30);
        same(admin.namespaces().getCompactionThreshold(namespace), 100L << 30, "of the namespace");
        same(admin.topicPolicies().getCompactionThreshold(topic), null, "the topic does not say");
        same(admin.topicPolicies().getCompactionThreshold(topic, true), 100L << 30, "in force");
        admin.topicPolicies().setCompactionThreshold(topic, 5000L);
        same(admin.topicPolicies().getCompactionThreshold(topic), 5000L, "of the topic");
        admin.topicPolicies().removeCompactionThreshold(topic);
        same(admin.topicPolicies().getCompactionThreshold(topic), null, "removed");
        admin.namespaces().removeCompactionThreshold(namespace);
        same(admin.namespaces().getCompactionThreshold(namespace), null, "removed there");
    }
}
