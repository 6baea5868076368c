import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.CompletableFuture;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * Consumes with receipts of its acknowledgements, until it is killed, and writes a history
 * (tests/chaos/whole/history.py) of what it got, what it acknowledged, and which receipts came.
 *
 * Arguments: its name, the service URL, the history's path, and TOPIC=SUBSCRIPTION for each consumer,
 * which is shared. Topics are those of the namespace public/default, by their short names.
 *
 * Times are of the machine's monotonic clock, as in the other histories. A delivery is noted with when
 * the consumer was without a connection last: it came on one that was made after that.
 */
public final class ReceiptsPeer {
    private final String name;
    private final FileOutputStream history;

    private ReceiptsPeer(String name, String path) throws IOException {
        this.name = name;
        this.history = new FileOutputStream(path, true);
    }

    public static void main(String[] args) throws Exception {
        ReceiptsPeer peer = new ReceiptsPeer(args[0], args[2]);
        PulsarClient client = PulsarClient.builder().serviceUrl(args[1]).build();
        List<Thread> threads = new ArrayList<>();
        for (int index = 3; index < args.length; index++) {
            String[] parts = args[index].split("=", 2);
            Thread thread = new Thread(() -> peer.run(client, parts[0], parts[1]));
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private void run(PulsarClient client, String topic, String subscription) {
        try {
            consume(subscribed(client, topic, subscription), topic, subscription);
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1);
        }
    }

    /** An application that starts while its cluster burns tries again. */
    private Consumer<byte[]> subscribed(PulsarClient client, String topic, String subscription)
        throws InterruptedException {
        while (true) {
            try {
                return client.newConsumer().topic("persistent://public/default/" + topic)
                    .subscriptionName(subscription).subscriptionType(SubscriptionType.Shared)
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                    .receiverQueueSize(50).isAckReceiptEnabled(true).subscribe();
            } catch (Exception notYet) {
                Thread.sleep(500);
            }
        }
    }

    private void consume(Consumer<byte[]> consumer, String topic, String subscription)
        throws Exception {
        while (true) {
            Message<byte[]> message = consumer.receive();
            String[] words = new String(message.getData(), StandardCharsets.US_ASCII).split(" ");
            String which = String.format(
                "\"%s\",\"%s\",\"%s\",%s", topic, subscription, words[0], words[1]);
            write("got", String.format(
                Locale.ROOT, "%s,%d,\"%s\",%.6f", which, message.getRedeliveryCount(), name,
                since(consumer)));
            write("acked", which);
            CompletableFuture<Void> answer = consumer.acknowledgeAsync(message);
            if (!answer.isDone()) { // of what it has no connection for, the client says so at once
                answer.thenRun(() -> write("stored", which));
            }
        }
    }

    /** When the connection was not there yet, or 0 if it always was. */
    private static double since(Consumer<byte[]> consumer) {
        long lost_ms = consumer.getLastDisconnectedTimestamp();
        return lost_ms == 0 ? 0.0 : now() - (System.currentTimeMillis() - lost_ms) / 1e3;
    }

    private static double now() {
        return System.nanoTime() / 1e9;
    }

    private synchronized void write(String what, String values) {
        String line = String.format(Locale.ROOT, "[%.6f,\"%s\",%s]\n", now(), what, values);
        try {
            history.write(line.getBytes(StandardCharsets.US_ASCII));
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }
}
