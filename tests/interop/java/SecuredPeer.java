import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.Authentication;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.common.policies.data.AuthAction;

/**
 * Pulsar's Java clients where brokers ask who they are: tokens, TLS, permissions.
 *
 * Arguments: the service URL, the same by TLS, REST by TLS, the trusted certificate, a certificate
 * and its key (not used here), tokens of an admin, of alice, and of a role without permissions, and
 * a file whose token expires soon and is written again all the time. Prints "ok" and the name of
 * each step that is done.
 */
public final class SecuredPeer {
    private static final int WAIT_S = 30;
    private static final int EXPIRY_MS = 6000;

    interface Step {
        void run() throws Exception;
    }

    private final String url;
    private final String tlsUrl;
    private final String httpsUrl;
    private final String trust;
    private final String root;
    private final String alice;
    private final String nobody;
    private final Path expiring;

    public static void main(String[] args) {
        try {
            new SecuredPeer(args).run();
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    private SecuredPeer(String[] args) {
        url = args[0];
        tlsUrl = args[1];
        httpsUrl = args[2];
        trust = args[3];
        root = args[6];
        alice = args[7];
        nobody = args[8];
        expiring = Path.of(args[9]);
    }

    private void run() throws Exception {
        step("permissions", this::permissions);
        step("a token", () -> roundTrip(url, AuthenticationFactory.token(alice), "java-token", 0));
        step("a token by TLS",
            () -> roundTrip(tlsUrl, AuthenticationFactory.token(alice), "java-tls", 0));
        step("what is refused", this::refusals);
        step("a token that expires", () -> roundTrip(url,
            AuthenticationFactory.token(this::supplied), "java-expiring", EXPIRY_MS));
    }

    private static void step(String name, Step step) throws Exception {
        step.run();
        System.out.println("ok " + name);
    }

    private static void check(boolean holds, String words) {
        if (!holds) {
            throw new AssertionError(words);
        }
    }

    private String supplied() {
        try {
            return Files.readString(expiring);
        } catch (java.io.IOException gone) {
            throw new java.io.UncheckedIOException(gone);
        }
    }

    private PulsarAdmin admin(String token) throws Exception {
        return PulsarAdmin.builder().serviceHttpUrl(httpsUrl).tlsTrustCertsFilePath(trust)
            .authentication(AuthenticationFactory.token(token)).build();
    }

    private void permissions() throws Exception {
        Set<AuthAction> may = Set.of(AuthAction.produce, AuthAction.consume);
        try (PulsarAdmin admin = admin(root)) {
            admin.namespaces().grantPermissionOnNamespace("public/default", "alice", may);
            check(admin.namespaces().getPermissions("public/default").get("alice").equals(may),
                "what was granted");
            String topic = "persistent://public/default/java-one";
            admin.topics().grantPermission(topic, "bob", Set.of(AuthAction.consume));
            check(admin.topics().getPermissions(topic).get("bob").contains(AuthAction.consume),
                "what was granted for one topic");
            admin.topics().revokePermissions(topic, "bob");
            check(!admin.topics().getPermissions(topic).containsKey("bob"), "it was taken back");
        }
        try (PulsarAdmin admin = admin(alice)) {
            admin.namespaces().grantPermissionOnNamespace("public/default", "bob", may);
            throw new AssertionError("alice is no admin");
        } catch (PulsarAdminException.NotAuthorizedException refused) {
            check(refused.getStatusCode() == 403, "forbidden");
        }
        try (PulsarAdmin admin = admin("none")) {
            admin.tenants().getTenants();
            throw new AssertionError("that is no token");
        } catch (PulsarAdminException.NotAuthorizedException refused) {
            check(refused.getStatusCode() == 401, "unauthorized");
        }
    }

    private PulsarClient client(String serviceUrl, Authentication authentication)
        throws Exception {
        var builder = PulsarClient.builder().serviceUrl(serviceUrl).tlsTrustCertsFilePath(trust)
            .operationTimeout(WAIT_S, TimeUnit.SECONDS);
        return (authentication == null ? builder : builder.authentication(authentication)).build();
    }

    private void roundTrip(String serviceUrl, Authentication authentication, String topic, int ms)
        throws Exception {
        try (PulsarClient client = client(serviceUrl, authentication);
            Consumer<byte[]> consumer =
                client.newConsumer().topic(topic).subscriptionName("s").subscribe();
            Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
            Thread.sleep(ms);
            producer.send("hello".getBytes());
            Message<byte[]> message = consumer.receive(WAIT_S, TimeUnit.SECONDS);
            check(message != null && new String(message.getData()).equals("hello"), "what was sent");
        }
    }

    private void refusals() throws Exception {
        for (Authentication each : new Authentication[] {
            AuthenticationFactory.token("none"), null}) {
            try (PulsarClient client = client(url, each)) {
                client.newProducer().topic("java-refused").create();
                throw new AssertionError("a producer was made");
            } catch (PulsarClientException.AuthenticationException expected) {
                check(expected.getMessage().contains("not accepted"), expected.getMessage());
            }
        }
        try (PulsarClient client = client(url, AuthenticationFactory.token(nobody))) {
            client.newProducer().topic("java-refused").create();
            throw new AssertionError("a producer was made");
        } catch (PulsarClientException.AuthorizationException expected) {
            check(expected.getMessage().contains("nobody may not"), expected.getMessage());
        }
    }
}
