import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * Consumes wherever it is sent, as applications do: they do not know.
 *
 * Arguments: the service URL, how many different messages are awaited, and for each consumer
 * KIND=TOPIC: "Exclusive", "Shared", "Failover", "Reader", or "Tail" (a reader from now on). Prints
 * "KIND subscribed", "KIND got TEXT" for each message, which it acknowledges, and "KIND ok".
 */
public final class SteeredPeer {
    private static final int WAIT_S = 90;

    private final PulsarClient client;
    private final int count;

    private SteeredPeer(PulsarClient client, int count) {
        this.client = client;
        this.count = count;
    }

    public static void main(String[] args) throws Exception {
        List<Thread> threads = new ArrayList<>();
        PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build();
        SteeredPeer peer = new SteeredPeer(client, Integer.parseInt(args[1]));
        for (int index = 2; index < args.length; index++) {
            String[] parts = args[index].split("=", 2);
            Thread thread = new Thread(() -> peer.run(parts[0], parts[1]));
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        client.close();
        System.exit(0);
    }

    private void run(String kind, String topic) {
        try {
            if (kind.equals("Reader") || kind.equals("Tail")) {
                read(kind, topic);
            } else {
                consume(kind, topic);
            }
            say(kind, "ok");
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1);
        }
    }

    private void read(String kind, String topic) throws Exception {
        Set<String> seen = new HashSet<>();
        boolean tail = kind.equals("Tail");
        try (Reader<byte[]> reader = client.newReader().topic(topic)
            .startMessageId(tail ? MessageId.latest : MessageId.earliest).create()) {
            check(!reader.hasMessageAvailable(), "nothing is published yet");
            say(kind, "subscribed");
            while (seen.size() < count) {
                got(kind, reader.readNext(WAIT_S, TimeUnit.SECONDS), seen);
            }
        }
    }

    private void consume(String kind, String topic) throws Exception {
        Set<String> seen = new HashSet<>();
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
            .subscriptionType(SubscriptionType.valueOf(kind)).property("peer", "java")
            .subscriptionInitialPosition(SubscriptionInitialPosition.Latest).subscribe()) {
            say(kind, "subscribed");
            while (seen.size() < count) {
                Message<byte[]> message = consumer.receive(WAIT_S, TimeUnit.SECONDS);
                got(kind, message, seen);
                consumer.acknowledge(message);
            }
        }
    }

    private static void got(String kind, Message<byte[]> message, Set<String> seen) {
        check(message != null, kind + ": no message within " + WAIT_S + " s; had " + seen.size());
        String text = new String(message.getData());
        seen.add(text);
        say(kind, "got " + text);
    }

    private static void check(boolean true_, String what) {
        if (!true_) {
            throw new AssertionError(what);
        }
    }

    private static synchronized void say(String kind, String what) {
        System.out.println(kind + " " + what);
    }
}
