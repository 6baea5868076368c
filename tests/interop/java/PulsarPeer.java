import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatchReceivePolicy;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.KeySharedPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.common.util.Murmur3_32Hash;

/**
 * Uses a broker the way applications do, through Pulsar's own client, and says what worked.
 *
 * Arguments: the service URL, and the steps' names if not all. Each step prints "ok NAME"; the first
 * that fails ends the program with its stack trace and status 1.
 */
public final class PulsarPeer {
    /** More than any step needs, and less than the client's own time-outs of 30 s. */
    private static final int WAIT_S = 20;
    private static final int AT_ONCE_S = 5;

    interface Step {
        void run() throws Exception;
    }

    public static final class Thing {
        public String name;
        public int number;

        public Thing() {
        }

        Thing(String name, int number) {
            this.name = name;
            this.number = number;
        }
    }

    private final String url;
    private final List<String> only;
    private final PulsarClient client;
    private int topics;

    private PulsarPeer(String url, List<String> only) throws Exception {
        this.url = url;
        this.only = only;
        this.client = PulsarClient.builder().serviceUrl(url).build();
    }

    public static void main(String[] args) {
        try {
            new PulsarPeer(args[0], Arrays.asList(args).subList(1, args.length)).run();
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    private void run() throws Exception {
        for (SubscriptionType type : new SubscriptionType[] {
            SubscriptionType.Exclusive, SubscriptionType.Shared, SubscriptionType.Failover}) {
            step("consume " + type, () -> produceAndConsume(type));
        }
        for (CompressionType type : CompressionType.values()) {
            step("batches " + type, () -> batches(type));
        }
        step("batch index acknowledgement", this::batchIndexes);
        step("chunks", this::chunks);
        step("reader", this::reader);
        step("reader from every id", this::readerFromEveryId);
        step("seek", this::seek);
        step("negative acknowledgement", this::negativeAcknowledgement);
        step("redelivery of all", this::redeliveryOfAll);
        step("dead letter", this::deadLetter);
        step("reconsume later", this::reconsumeLater);
        step("json schema", () -> typed(Schema.JSON(Thing.class)));
        step("avro schema", () -> typed(Schema.AVRO(Thing.class)));
        step("auto produce and consume", this::automatic);
        step("pattern", this::pattern);
        step("pattern of topics that come later", this::patternWatched);
        step("delayed", this::delayed);
        step("transactions are refused", this::transactions);
        step("bad names are refused", this::badNames);
        step("key shared", this::keyShared);
        step("key shared sticky", this::keySharedSticky);
        step("key shared out of order", this::keySharedOutOfOrder);
        step("key shared batched by key", this::keySharedBatches);
    }

    private void step(String name, Step step) throws Exception {
        if (only.isEmpty() || only.contains(name)) {
            step.run();
            System.out.println("ok " + name);
        }
    }

    // -- what steps say over and over -------------------------------------------------------------

    private String topic() {
        topics++;
        return "persistent://public/default/java-peer-" + System.nanoTime() + "-" + topics;
    }

    private ConsumerBuilder<byte[]> consumer(String topic, SubscriptionType type) {
        return client.newConsumer().topic(topic).subscriptionName("s").subscriptionType(type)
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
    }

    private Producer<byte[]> plain(String topic) throws Exception {
        return client.newProducer().topic(topic).enableBatching(false).create();
    }

    private ProducerBuilder<byte[]> batching(String topic, int size) {
        return client.newProducer().topic(topic).batchingMaxMessages(size)
            .batchingMaxPublishDelay(10, TimeUnit.SECONDS);
    }

    private static List<MessageId> publish(Producer<byte[]> producer, int count) throws Exception {
        List<java.util.concurrent.CompletableFuture<MessageId>> sent = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            sent.add(producer.sendAsync(Integer.toString(number).getBytes()));
        }
        producer.flush();
        List<MessageId> ids = new ArrayList<>();
        for (java.util.concurrent.CompletableFuture<MessageId> one : sent) {
            ids.add(one.get(WAIT_S, TimeUnit.SECONDS));
        }
        return ids;
    }

    private static <T> Message<T> next(Consumer<T> consumer) throws Exception {
        Message<T> message = consumer.receive(WAIT_S, TimeUnit.SECONDS);
        check(message != null, "a message comes");
        return message;
    }

    private static void expect(Consumer<byte[]> consumer, int first, int stop) throws Exception {
        for (int number = first; number < stop; number++) {
            String text = new String(next(consumer).getData());
            check(text.equals(Integer.toString(number)), "message " + number + ", got " + text);
        }
    }

    private static void check(boolean true_, String what) {
        if (!true_) {
            throw new AssertionError(what);
        }
    }

    /** {@code step} ends with an error that has {@code words}, at once. */
    private static void refused(String words, Step step) throws Exception {
        long begun = System.nanoTime();
        try {
            step.run();
        } catch (Exception error) {
            long seconds = (System.nanoTime() - begun) / 1_000_000_000;
            check(seconds < AT_ONCE_S, "refused at once, not after " + seconds + " s: " + error);
            check(String.valueOf(error).contains(words), "'" + words + "' in: " + error);
            return;
        }
        throw new AssertionError("not refused: " + words);
    }

    // -- the steps --------------------------------------------------------------------------------

    private void produceAndConsume(SubscriptionType type) throws Exception {
        String topic = topic();
        try (Consumer<byte[]> consumer = consumer(topic, type).subscribe();
            Producer<byte[]> producer = plain(topic)) {
            List<MessageId> ids = publish(producer, 20);
            for (int number = 0; number < 20; number++) {
                Message<byte[]> message = next(consumer);
                check(message.getMessageId().compareTo(ids.get(number)) == 0, "the receipt's id");
                check(new String(message.getData()).equals(Integer.toString(number)), "in order");
                if (number % 3 != 0) {
                    consumer.acknowledge(message);
                }
            }
        }
        try (Consumer<byte[]> again = consumer(topic, type).subscribe()) {
            for (int number = 0; number < 20; number += 3) {
                String text = new String(next(again).getData());
                check(text.equals(Integer.toString(number)), "not acknowledged: " + number);
            }
            check(again.getLastMessageIds().size() == 1, "a last message id");
            again.unsubscribe();
        }
    }

    private void batches(CompressionType compression) throws Exception {
        String topic = topic();
        try (Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Exclusive)
                .batchReceivePolicy(BatchReceivePolicy.builder().maxNumMessages(10)
                    .timeout(WAIT_S, TimeUnit.SECONDS).build()).subscribe();
            Producer<byte[]> producer =
                batching(topic, 10).compressionType(compression).create()) {
            publish(producer, 100);
            for (int batch = 0; batch < 10; batch++) {
                check(consumer.batchReceive().size() == 10, "ten messages at a time");
            }
        }
    }

    private void batchIndexes() throws Exception {
        String topic = topic();
        ConsumerBuilder<byte[]> builder = consumer(topic, SubscriptionType.Shared)
            .enableBatchIndexAcknowledgment(true).isAckReceiptEnabled(true);
        try (Consumer<byte[]> consumer = builder.subscribe();
            Producer<byte[]> producer = batching(topic, 10).create()) {
            publish(producer, 10);
            for (int number = 0; number < 10; number++) {
                Message<byte[]> message = next(consumer);
                if (number != 4) {
                    consumer.acknowledge(message);
                }
            }
        }
        try (Consumer<byte[]> again = builder.subscribe()) {
            expect(again, 4, 5);
        }
    }

    private void chunks() throws Exception {
        String topic = topic();
        byte[] large = new byte[12 << 20];
        new java.util.Random(7).nextBytes(large);
        try (Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Exclusive).subscribe();
            Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false)
                .enableChunking(true).create()) {
            producer.send(large);
            producer.send("small".getBytes());
            check(Arrays.equals(next(consumer).getData(), large), "the large message");
            check(new String(next(consumer).getData()).equals("small"), "the small message");
        }
    }

    private void reader() throws Exception {
        String topic = topic();
        try (Producer<byte[]> producer = plain(topic);
            Reader<byte[]> tail = client.newReader().topic(topic)
                .startMessageId(MessageId.latest).create()) {
            publish(producer, 10);
            try (Reader<byte[]> all = client.newReader().topic(topic)
                .startMessageId(MessageId.earliest).create()) {
                int count = 0;
                while (all.hasMessageAvailable()) {
                    String text = new String(all.readNext(WAIT_S, TimeUnit.SECONDS).getData());
                    check(text.equals(Integer.toString(count)), "read " + count);
                    count++;
                }
                check(count == 10, "all are read, not " + count);
            }
            String text = new String(tail.readNext(WAIT_S, TimeUnit.SECONDS).getData());
            check(text.equals("0"), "what came after the reader");
        }
    }

    private void readerFromEveryId() throws Exception {
        for (int batch : new int[] {1, 10}) {
            String topic = topic();
            List<MessageId> ids;
            try (Producer<byte[]> producer =
                batching(topic, batch).enableBatching(batch > 1).create()) {
                ids = publish(producer, 20);
            }
            for (boolean inclusive : new boolean[] {false, true}) {
                for (int index : new int[] {0, 3, 9, 10, 18}) {
                    readFrom(topic, ids.get(index), inclusive, inclusive ? index : index + 1);
                }
            }
        }
    }

    private void readFrom(String topic, MessageId id, boolean inclusive, int first)
        throws Exception {
        org.apache.pulsar.client.api.ReaderBuilder<byte[]> builder =
            client.newReader().topic(topic).startMessageId(id);
        if (inclusive) {
            builder.startMessageIdInclusive();
        }
        try (Reader<byte[]> reader = builder.create()) {
            for (int number = first; number < 20; number++) {
                Message<byte[]> message = reader.readNext(WAIT_S, TimeUnit.SECONDS);
                check(message != null, "message " + number + " from " + id);
                String text = new String(message.getData());
                check(text.equals(Integer.toString(number)), number + " from " + id + ": " + text);
            }
        }
    }

    private void seek() throws Exception {
        String topic = topic();
        try (Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Exclusive).subscribe();
            Producer<byte[]> producer = plain(topic)) {
            List<MessageId> ids = publish(producer, 20);
            expect(consumer, 0, 20);
            consumer.seek(ids.get(5)); // exclusive, unless the consumer asks for more
            expect(consumer, 6, 20);
            consumer.seek(MessageId.earliest);
            expect(consumer, 0, 20);
            consumer.seek(System.currentTimeMillis() - 3_600_000);
            expect(consumer, 0, 20);
        }
    }

    private void negativeAcknowledgement() throws Exception {
        String topic = topic();
        try (Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Shared)
                .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS).subscribe();
            Producer<byte[]> producer = plain(topic)) {
            publish(producer, 1);
            consumer.negativeAcknowledge(next(consumer));
            Message<byte[]> again = next(consumer);
            check(again.getRedeliveryCount() == 1, "redelivered once");
            consumer.acknowledge(again);
        }
    }

    /**
     * After it comes what is not acknowledged from its first message on, and not what was on its way.
     * The client itself may let one through that it was just handing over (in 4.0.8).
     */
    private void redeliveryOfAll() throws Exception {
        String topic = topic();
        int count = 3000;
        try (Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Exclusive).subscribe();
            Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false)
                .blockIfQueueFull(true).create()) {
            for (int number = 0; number < count; number++) {
                producer.sendAsync(Arrays.copyOf(Integer.toString(number).getBytes(), 10_000));
            }
            producer.flush();
            for (int round = 0; round < 20; round++) {
                String first = new String(next(consumer).getData()).trim();
                String second = new String(next(consumer).getData()).trim();
                check(first.equals("0") || second.equals("0"), "round " + round + " begins with "
                    + first + " and " + second);
                for (int more = 0; more < 100; more++) {
                    next(consumer);
                }
                consumer.redeliverUnacknowledgedMessages();
            }
        }
    }

    private void deadLetter() throws Exception {
        String topic = topic();
        DeadLetterPolicy policy = DeadLetterPolicy.builder().maxRedeliverCount(2)
            .deadLetterTopic(topic + "-dead").initialSubscriptionName("kept").build();
        try (Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Shared)
                .deadLetterPolicy(policy).negativeAckRedeliveryDelay(50, TimeUnit.MILLISECONDS)
                .subscribe();
            Producer<byte[]> producer = plain(topic)) {
            publish(producer, 1);
            for (int count = 0; count < 3; count++) {
                consumer.negativeAcknowledge(next(consumer));
            }
            check(consumer.receive(1, TimeUnit.SECONDS) == null, "it comes no more");
            try (Consumer<byte[]> dead = client.newConsumer().topic(topic + "-dead")
                .subscriptionName("kept").subscribe()) {
                expect(dead, 0, 1);
            }
        }
    }

    /** Without a delay: a delayed message is refused, and the original comes again. */
    private void reconsumeLater() throws Exception {
        String topic = topic();
        DeadLetterPolicy policy = DeadLetterPolicy.builder().maxRedeliverCount(2)
            .retryLetterTopic(topic + "-retry").deadLetterTopic(topic + "-dead").build();
        try (Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Shared)
                .enableRetry(true).deadLetterPolicy(policy).subscribe();
            Consumer<byte[]> dead = client.newConsumer().topic(topic + "-dead")
                .subscriptionName("d").subscribe();
            Producer<byte[]> producer = plain(topic)) {
            publish(producer, 1);
            for (int count = 0; count < 3; count++) {
                consumer.reconsumeLater(next(consumer), 0, TimeUnit.SECONDS);
            }
            expect(dead, 0, 1);
        }
    }

    private void typed(Schema<Thing> schema) throws Exception {
        String topic = topic();
        try (Consumer<Thing> consumer = client.newConsumer(schema).topic(topic)
                .subscriptionName("s").subscribe();
            Producer<Thing> producer = client.newProducer(schema).topic(topic).create()) {
            for (int number = 0; number < 5; number++) {
                producer.send(new Thing("thing", number));
            }
            for (int number = 0; number < 5; number++) {
                Thing thing = next(consumer).getValue();
                check(thing.number == number && thing.name.equals("thing"), "thing " + number);
            }
        }
    }

    /** On a topic without a schema both deal in bytes. */
    private void automatic() throws Exception {
        String topic = topic();
        try (Consumer<org.apache.pulsar.client.api.schema.GenericRecord> consumer =
                client.newConsumer(Schema.AUTO_CONSUME()).topic(topic).subscriptionName("s")
                .subscribe();
            Producer<byte[]> producer =
                client.newProducer(Schema.AUTO_PRODUCE_BYTES()).topic(topic).create()) {
            producer.send("bytes".getBytes());
            check(new String(next(consumer).getData()).equals("bytes"), "the bytes");
        }
    }

    private void pattern() throws Exception {
        String topic = topic();
        try (Producer<byte[]> one = plain(topic + "-one"); Producer<byte[]> two =
                plain(topic + "-two"); Consumer<byte[]> consumer = client.newConsumer()
                .topicsPattern(topic + "-.*").subscriptionName("s")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            one.send("1".getBytes());
            two.send("2".getBytes());
            check(next(consumer).getData().length + next(consumer).getData().length == 2, "both");
        }
    }

    /** Asks for the list itself once an hour only: what comes sooner is told by the broker. */
    private void patternWatched() throws Exception {
        String topic = topic();
        try (Consumer<byte[]> consumer = client.newConsumer()
                .topicsPattern(topic + "-.*").subscriptionName("s")
                .patternAutoDiscoveryPeriod(1, TimeUnit.HOURS)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            for (int number = 0; number < 20; number++) {
                try (Producer<byte[]> later = plain(topic + "-" + number)) {
                    later.send("1".getBytes());
                }
                if (number < 5) { // the others come together
                    check(next(consumer).getTopicName().equals(topic + "-" + number), "the new");
                }
            }
            for (int number = 5; number < 20; number++) {
                next(consumer);
            }
            try (Producer<byte[]> other = plain(topic)) {
                other.send("1".getBytes());
            }
            check(consumer.receive(2, TimeUnit.SECONDS) == null, "others do not match");
        }
    }

    // -- what is not served -----------------------------------------------------------------------

    private void delayed() throws Exception {
        String topic = topic();
        try (Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Shared).subscribe();
            Producer<byte[]> producer = batching(topic, 10).create()) {
            long due = System.currentTimeMillis() + 2000;
            producer.newMessage().value("2".getBytes()).deliverAt(due + 1000).sendAsync();
            producer.newMessage().value("1".getBytes()).deliverAfter(2, TimeUnit.SECONDS)
                .sendAsync();
            producer.sendAsync("0".getBytes()); // which does not wait for them
            producer.flush();
            expect(consumer, 0, 1);
            expect(consumer, 1, 2);
            check(System.currentTimeMillis() >= due, "what is delayed does not come early");
            expect(consumer, 2, 3);
            check(System.currentTimeMillis() >= due + 1000, "nor does the last");
        }
    }

    private void transactions() throws Exception {
        refused("transactions are not served",
            () -> PulsarClient.builder().serviceUrl(url).enableTransaction(true).build());
    }

    private void badNames() throws Exception {
        for (String name : new String[] {".", "..", "x".repeat(1100), "a\u0001b"}) {
            String topic = "persistent://public/default/" + name;
            refused("", () -> plain(topic));
            refused("", () -> consumer(topic, SubscriptionType.Exclusive).subscribe());
        }
    }

    private ConsumerBuilder<byte[]> keyed(String topic, KeySharedPolicy policy) {
        return consumer(topic, SubscriptionType.Key_Shared).keySharedPolicy(policy)
            .receiverQueueSize(10);
    }

    private static void publishKeys(Producer<byte[]> producer, int first, int stop, int keys)
            throws Exception {
        for (int number = first; number < stop; number++) {
            producer.newMessage().key("k" + number % keys)
                .value(Integer.toString(number).getBytes()).sendAsync();
        }
        producer.flush();
    }

    /** Takes and acknowledges what comes until {@code numbers} has so many, each key in order. */
    private static void drain(Map<String, List<Integer>> numbers, int stop,
            List<Consumer<byte[]>> consumers) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(2 * WAIT_S);
        while (numbers.values().stream().mapToInt(List::size).sum() < stop) {
            check(System.nanoTime() < end, "all come: " + numbers);
            for (Consumer<byte[]> consumer : consumers) {
                Message<byte[]> message = consumer.receive(50, TimeUnit.MILLISECONDS);
                if (message == null) {
                    continue;
                }
                int number = Integer.parseInt(new String(message.getData()));
                List<Integer> found =
                    numbers.computeIfAbsent(message.getKey(), key -> new ArrayList<>());
                check(found.isEmpty() || found.get(found.size() - 1) < number,
                    number + " of " + message.getKey() + " comes after " + found);
                found.add(number);
                consumer.acknowledge(message);
            }
        }
    }

    private void keyShared() throws Exception {
        String topic = topic();
        Map<String, List<Integer>> numbers = new HashMap<>();
        KeySharedPolicy policy = KeySharedPolicy.autoSplitHashRange();
        try (Producer<byte[]> producer = plain(topic);
            Consumer<byte[]> one = keyed(topic, policy).subscribe()) {
            publishKeys(producer, 0, 100, 20);
            drain(numbers, 30, Arrays.asList(one));
            try (Consumer<byte[]> two = keyed(topic, policy).subscribe();
                Consumer<byte[]> three = keyed(topic, policy).subscribe()) {
                drain(numbers, 60, Arrays.asList(one, two, three));
                publishKeys(producer, 100, 200, 20);
                drain(numbers, 200, Arrays.asList(one, two, three));
                check(numbers.size() == 20, "of every key");
            }
            producer.newMessage().key("again").value("0".getBytes()).send();
            Message<byte[]> message = next(one);
            one.negativeAcknowledge(message);
            one.redeliverUnacknowledgedMessages();
            check(next(one).getKey().equals("again"), "what is refused comes again");
        }
    }

    private void keySharedSticky() throws Exception {
        String topic = topic();
        Map<String, List<Integer>> low = new HashMap<>();
        Map<String, List<Integer>> high = new HashMap<>();
        KeySharedPolicy lower = KeySharedPolicy.stickyHashRange().ranges(Range.of(0, 32767));
        KeySharedPolicy upper = KeySharedPolicy.stickyHashRange().ranges(Range.of(32768, 65535));
        KeySharedPolicy across = KeySharedPolicy.stickyHashRange().ranges(Range.of(30000, 40000));
        try (Producer<byte[]> producer = plain(topic);
            Consumer<byte[]> one = keyed(topic, lower).subscribe()) {
            refused("Range conflict", () -> keyed(topic, across).subscribe());
            refused("key_shared mode",
                () -> keyed(topic, KeySharedPolicy.autoSplitHashRange()).subscribe());
            refused("", () -> consumer(topic, SubscriptionType.Shared).subscribe());
            publishKeys(producer, 0, 200, 200);
            try (Consumer<byte[]> two = keyed(topic, upper).subscribe()) {
                Message<byte[]> message;
                while ((message = one.receive(2, TimeUnit.SECONDS)) != null) {
                    low.computeIfAbsent(message.getKey(), key -> new ArrayList<>()).add(0);
                    one.acknowledge(message);
                }
                drain(high, 200 - low.size(), Arrays.asList(two));
                check(low.size() > 50 && high.size() > 50, "both have some");
                for (String key : low.keySet()) {
                    int hash = Murmur3_32Hash.getInstance().makeHash(key.getBytes()) % 65536;
                    check(hash <= 32767, key + " is of the lower half");
                }
            }
        }
        Set<String> read = new HashSet<>();
        try (Reader<byte[]> reader = client.newReader().topic(topic)
                .startMessageId(MessageId.earliest).keyHashRange(Range.of(0, 32767)).create()) {
            Message<byte[]> message;
            while ((message = reader.readNext(2, TimeUnit.SECONDS)) != null) {
                check(read.add(message.getKey()), message.getKey() + " is read once");
            }
        }
        check(read.equals(low.keySet()), "a reader of the lower half has the same keys");
    }

    private void keySharedOutOfOrder() throws Exception {
        String topic = topic();
        KeySharedPolicy policy =
            KeySharedPolicy.autoSplitHashRange().setAllowOutOfOrderDelivery(true);
        try (Producer<byte[]> producer = plain(topic);
            Consumer<byte[]> one = keyed(topic, policy).subscribe();
            Consumer<byte[]> two = keyed(topic, policy).subscribe()) {
            refused("out of order",
                () -> keyed(topic, KeySharedPolicy.autoSplitHashRange()).subscribe());
            publishKeys(producer, 0, 100, 100);
            drain(new HashMap<>(), 100, Arrays.asList(one, two));
        }
    }

    private void keySharedBatches() throws Exception {
        String topic = topic();
        Map<String, List<Integer>> numbers = new HashMap<>();
        KeySharedPolicy policy = KeySharedPolicy.autoSplitHashRange();
        try (Producer<byte[]> producer =
                batching(topic, 50).batcherBuilder(BatcherBuilder.KEY_BASED).create();
            Consumer<byte[]> one = keyed(topic, policy).subscribe();
            Consumer<byte[]> two = keyed(topic, policy).subscribe()) {
            publishKeys(producer, 0, 500, 10);
            drain(numbers, 500, Arrays.asList(one, two));
            check(numbers.size() == 10, "of every key");
        }
    }
}
