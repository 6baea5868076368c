import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * Many topics at once while their owners change: one producer and one consumer a topic, numbered
 * messages.
 *
 * Arguments: how many topics, then the service URL of each broker by itself. A topic's producer and
 * its consumer are given different ones, so most lookups are redirected. What to do comes as lines
 * (see tests/interop/driven_peer.py): each is answered with one line.
 */
public final class SharedPeer {
    private static final int PENDING_MAX = 100;
    private static final int ROUND_MS = 20;
    private static final int WAIT_S = 240;

    private final List<PulsarClient> clients = new ArrayList<>();
    private final List<Traffic> topics = new ArrayList<>();
    private volatile boolean stopped;

    public static void main(String[] args) {
        try {
            new SharedPeer(args).run();
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    private SharedPeer(String[] args) throws Exception {
        for (int index = 1; index < args.length; index++) {
            clients.add(PulsarClient.builder().serviceUrl(args[index])
                .keepAliveInterval(5, TimeUnit.SECONDS).build());
        }
        for (int number = 0; number < Integer.parseInt(args[0]); number++) {
            PulsarClient producers = clients.get(number % clients.size());
            PulsarClient consumers = clients.get((number + 1) % clients.size());
            topics.add(new Traffic(number, producers, consumers));
        }
    }

    private void run() throws Exception {
        Thread sender = new Thread(this::sendAll);
        sender.start();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("wait")) {
                waitAnswered(Integer.parseInt(words[1]));
                System.out.println("answered");
            } else if (words[0].equals("mark")) {
                topics.forEach(Traffic::mark);
                System.out.println("marked");
            } else if (words[0].equals("gap")) {
                System.out.println(topics.stream().mapToLong(Traffic::gapMs).max().getAsLong());
            } else {
                stopped = true;
                sender.join();
                System.out.println(counts());
            }
        }
    }

    private void sendAll() {
        try {
            while (!stopped) {
                topics.forEach(Traffic::send);
                Thread.sleep(ROUND_MS);
            }
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }

    private void waitAnswered(int more) throws Exception {
        List<Long> goals = new ArrayList<>();
        topics.forEach(each -> goals.add(each.answered() + more));
        for (int index = 0; index < goals.size(); index++) {
            Traffic topic = topics.get(index);
            long goal = goals.get(index);
            await(() -> topic.answered() >= goal, topic.name + " is not served");
        }
    }

    /** Of each topic: its name, and how many messages were acknowledged, sent and received. */
    private String counts() throws Exception {
        StringBuilder line = new StringBuilder();
        for (Traffic topic : topics) {
            await(() -> topic.answered() == topic.sent, topic.name + ": sends without an answer");
            await(() -> topic.highest == topic.sent - 1, topic.name + ": not all are received");
            await(() -> topic.receipts() > 0, topic.name + ": no acknowledgement has a receipt");
            line.append(topic.name).append(' ').append(topic.answered()).append(' ');
        }
        return line.toString().trim();
    }

    interface Condition {
        boolean holds();
    }

    private void await(Condition condition, String what) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_S);
        while (!condition.holds()) {
            for (Traffic topic : topics) {
                if (topic.fault != null) {
                    throw new AssertionError(topic.name + ": " + topic.fault);
                }
            }
            if (System.nanoTime() > deadline) {
                throw new AssertionError(what);
            }
            Thread.sleep(10);
        }
    }

    private static final class Traffic {
        final String name;
        volatile String fault;
        volatile long sent;
        volatile long highest = -1;
        private final Producer<byte[]> producer;
        /** When the receipt of a message's acknowledgement came, ms; by its number. */
        private final Map<Long, Long> receiptsMs = new HashMap<>();
        private long answered;
        private long receipts;
        private long lastNs;
        private long worstNs;

        Traffic(int number, PulsarClient producers, PulsarClient consumers) throws Exception {
            name = "persistent://public/default/shared-" + number;
            SubscriptionType type =
                number % 2 == 0 ? SubscriptionType.Exclusive : SubscriptionType.Failover;
            consumers.newConsumer().topic(name).subscriptionName("all").subscriptionType(type)
                .isAckReceiptEnabled(true)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .messageListener(this::received).subscribe();
            producer = producers.newProducer().topic(name).enableBatching(false)
                .sendTimeout(0, TimeUnit.SECONDS).maxPendingMessages(2 * PENDING_MAX).create();
        }

        /** One message, unless too many wait for their answers. */
        void send() {
            if (sent - answered() >= PENDING_MAX) {
                return;
            }
            byte[] payload = ByteBuffer.allocate(8).putLong(sent).array();
            sent++;
            producer.newMessage().key("k" + sent % 3).value(payload).sendAsync()
                .whenComplete(this::stored);
        }

        private synchronized void stored(MessageId id, Throwable error) {
            if (error != null) {
                fault = "a send failed: " + error;
                return;
            }
            answered++;
            long now = System.nanoTime();
            worstNs = Math.max(worstNs, now - lastNs);
            lastNs = now;
        }

        synchronized long answered() {
            return answered;
        }

        synchronized long receipts() {
            return receipts;
        }

        synchronized void mark() {
            lastNs = System.nanoTime();
            worstNs = 0;
        }

        /** The longest time without an acknowledgement since the mark. */
        synchronized long gapMs() {
            return TimeUnit.NANOSECONDS.toMillis(Math.max(worstNs, System.nanoTime() - lastNs));
        }

        /** In order: only what came before and may not have been acknowledged comes again. */
        private void received(Consumer<byte[]> consumer, Message<byte[]> message) {
            long number = ByteBuffer.wrap(message.getData()).getLong();
            if (number > highest + 1) {
                fault = "received " + number + " after " + highest;
            }
            if (receiptMs(number) <= consumer.getLastDisconnectedTimestamp()) {
                fault = "received " + number + " again, on a connection after its receipt";
            }
            highest = Math.max(highest, number);
            CompletableFuture<Void> receipt = consumer.acknowledgeAsync(message);
            if (!receipt.isDone()) { // of what it has no connection for, the client says so at once
                receipt.thenRun(() -> hasReceipt(number));
            }
        }

        private synchronized void hasReceipt(long number) {
            receiptsMs.putIfAbsent(number, System.currentTimeMillis());
            receipts++;
        }

        /** Long.MAX_VALUE: there is none. */
        private synchronized long receiptMs(long number) {
            return receiptsMs.getOrDefault(number, Long.MAX_VALUE);
        }
    }
}
