import java.io.File;
import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.pulsar.client.admin.Functions;
import org.apache.pulsar.client.admin.LongRunningProcessStatus;
import org.apache.pulsar.client.admin.Lookup;
import org.apache.pulsar.client.admin.Namespaces;
import org.apache.pulsar.client.admin.NonPersistentTopics;
import org.apache.pulsar.client.admin.Packages;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.admin.PulsarAdminException.ConflictException;
import org.apache.pulsar.client.admin.PulsarAdminException.NotFoundException;
import org.apache.pulsar.client.admin.PulsarAdminException.PreconditionFailedException;
import org.apache.pulsar.client.admin.PulsarAdminException.ServerSideErrorException;
import org.apache.pulsar.client.admin.ResourceQuotas;
import org.apache.pulsar.client.admin.Schemas;
import org.apache.pulsar.client.admin.Sinks;
import org.apache.pulsar.client.admin.Sources;
import org.apache.pulsar.client.admin.TopicPolicies;
import org.apache.pulsar.client.admin.Topics;
import org.apache.pulsar.client.admin.Transactions;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.MessageListener;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.ReaderListener;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.common.naming.TopicVersion;
import org.apache.pulsar.common.policies.data.AuthAction;
import org.apache.pulsar.common.policies.data.AutoSubscriptionCreationOverride;
import org.apache.pulsar.common.policies.data.AutoTopicCreationOverride;
import org.apache.pulsar.common.policies.data.BacklogQuota;
import org.apache.pulsar.common.policies.data.BacklogQuota.BacklogQuotaType;
import org.apache.pulsar.common.policies.data.DelayedDeliveryPolicies;
import org.apache.pulsar.common.policies.data.DispatchRate;
import org.apache.pulsar.common.policies.data.PersistencePolicies;
import org.apache.pulsar.common.policies.data.Policies;
import org.apache.pulsar.common.policies.data.PublishRate;
import org.apache.pulsar.common.policies.data.RetentionPolicies;
import org.apache.pulsar.common.policies.data.SchemaCompatibilityStrategy;
import org.apache.pulsar.common.policies.data.SubscriptionStats;
import org.apache.pulsar.common.policies.data.TenantInfo;
import org.apache.pulsar.common.policies.data.TopicStats;
import org.apache.pulsar.common.schema.SchemaInfo;
import org.apache.pulsar.common.schema.SchemaType;

/**
 * Uses REST the way operators' programs do, through Pulsar's own admin client.
 *
 * Arguments: the HTTP URL and the service URL. Each step prints "ok NAME"; the first that fails ends
 * the program with its stack trace and status 1. The last step calls every other method that the
 * client has: each must be refused with our reason, and none be taken for something else.
 */
public final class AdminPeer {
    private static final int AT_ONCE_S = 5;
    private static final String NAMESPACE = "peer/a";
    private static final String TOPIC = "persistent://peer/a/plain";

    /** What the steps before the last have asked, or what clients ask of any broker. */
    private static final Set<String> SERVED = Set.of(
        "brokers.getActiveBrokers", "brokers.getOwnedNamespaces",
        "brokers.getRuntimeConfigurations", "namespaces.getBundles",
        "namespaces.getDeduplicationStatus", "namespaces.removeDeduplicationStatus",
        "namespaces.setDeduplicationStatus", "topicPolicies.getDeduplicationStatus",
        "topicPolicies.removeDeduplicationStatus", "topicPolicies.setDeduplicationStatus",
        "topics.disableDeduplication", "topics.enableDeduplication",
        "topics.getDeduplicationEnabled", "topics.getDeduplicationStatus",
        "topics.removeDeduplicationStatus", "topics.setDeduplicationStatus",
        "namespaces.splitNamespaceBundle", "namespaces.unload", "namespaces.unloadNamespaceBundle",
        "nonPersistentTopics.unload", "topics.createSubscription", "topics.unload",
        "brokers.healthcheck", "brokers.getVersion",
        "clusters.getCluster", "clusters.getClusters",
        "clusters.createCluster", "lookups.lookupTopic", "lookups.lookupPartitionedTopic",
        "namespaces.getDelayedDelivery", "namespaces.getNamespaceMessageTTL",
        "namespaces.getPersistence", "namespaces.getRetention",
        "namespaces.getSubscriptionExpirationTime", "namespaces.removeDelayedDeliveryMessages",
        "namespaces.removeNamespaceMessageTTL", "namespaces.removePersistence",
        "namespaces.removeRetention", "namespaces.removeSubscriptionExpirationTime",
        "namespaces.setDelayedDeliveryMessages", "namespaces.setNamespaceMessageTTL",
        "namespaces.setPersistence", "namespaces.setRetention",
        "namespaces.setSubscriptionExpirationTime", "topicPolicies.getDelayedDeliveryPolicy",
        "topicPolicies.getMessageTTL", "topicPolicies.getPersistence", "topicPolicies.getRetention",
        "topicPolicies.getSchemaCompatibilityStrategy",
        "topicPolicies.setSchemaCompatibilityStrategy",
        "topicPolicies.removeSchemaCompatibilityStrategy", "topics.getSchemaValidationEnforced",
        "topics.setSchemaValidationEnforced", "topics.compactionStatus", "topics.triggerCompaction",
        "topics.getCompactionThreshold", "topics.setCompactionThreshold",
        "topics.removeCompactionThreshold", "topicPolicies.getCompactionThreshold",
        "topicPolicies.setCompactionThreshold", "topicPolicies.removeCompactionThreshold",
        "namespaces.getCompactionThreshold", "namespaces.setCompactionThreshold",
        "namespaces.removeCompactionThreshold",
        "topicPolicies.removeDelayedDeliveryPolicy", "topicPolicies.removeMessageTTL",
        "topicPolicies.removePersistence", "topicPolicies.removeRetention",
        "topicPolicies.setDelayedDeliveryPolicy", "topicPolicies.setMessageTTL",
        "topicPolicies.setPersistence", "topicPolicies.setRetention",
        "topics.expireMessages", "topics.expireMessagesForAllSubscriptions",
        "topics.getLastMessageId", "topics.getMessageById", "topics.getMessageIdByTimestamp",
        "topics.getMessagesById", "topics.peekMessages",
        "topics.getDelayedDeliveryPolicy", "topics.getMessageTTL", "topics.getPersistence",
        "topics.getRetention", "topics.removeDelayedDeliveryPolicy", "topics.removeMessageTTL",
        "topics.removePersistence", "topics.removeRetention", "topics.setDelayedDeliveryPolicy",
        "topics.setMessageTTL", "topics.setPersistence", "topics.setRetention",
        "namespaces.getPermissions", "namespaces.grantPermissionOnNamespace",
        "namespaces.revokePermissionsOnNamespace", "topics.getPermissions",
        "topics.grantPermission", "topics.revokePermissions", "tenants.updateTenant",
        "properties.updateProperty",
        "namespaces.createNamespace", "namespaces.deleteNamespace", "namespaces.getPolicies",
        "tenants.deleteTenant", "properties.deleteProperty", "topics.skipMessages",
        "namespaces.getNamespaceReplicationClusters", "namespaces.setNamespaceReplicationClusters",
        "topics.createShadowTopic", // asks for its source first, which is not there: 404
        "namespaces.getNamespaces", "namespaces.getTopics",
        "namespaces.getIsAllowAutoUpdateSchema", "namespaces.getSchemaCompatibilityStrategy",
        "namespaces.getSchemaValidationEnforced", "namespaces.setIsAllowAutoUpdateSchema",
        "namespaces.setSchemaCompatibilityStrategy", "namespaces.setSchemaValidationEnforced",
        "nonPersistentTopics.createPartitionedTopic", "nonPersistentTopics.getList",
        "nonPersistentTopics.getPartitionedTopicMetadata", "nonPersistentTopics.getStats",
        "nonPersistentTopics.getInternalStats", "properties.createProperty",
        "properties.getProperties", "properties.getPropertyAdmin", "schemas.createSchema",
        "schemas.deleteSchema", "schemas.getAllSchemas", "schemas.getSchemaInfo",
        "schemas.getSchemaInfoWithVersion", "schemas.getVersionBySchema",
        "schemas.testCompatibility", "tenants.createTenant",
        "tenants.getTenantInfo", "tenants.getTenants", "topics.createNonPartitionedTopic",
        "topics.createPartitionedTopic", "topics.delete", "topics.deletePartitionedTopic",
        "topics.deleteSubscription", "topics.resetCursor", "topics.skipAllMessages",
        "topics.getInternalStats", "topics.getList",
        "topics.getPartitionedStats", "topics.getPartitionedTopicList",
        "topics.getPartitionedTopicMetadata", "topics.getStats", "topics.getSubscriptions",
        "topics.updatePartitionedTopic", "topics.terminateTopic",
        "topics.terminatePartitionedTopic", "namespaces.getAutoTopicCreation",
        "namespaces.setAutoTopicCreation", "namespaces.removeAutoTopicCreation",
        "namespaces.getAutoSubscriptionCreation", "namespaces.setAutoSubscriptionCreation",
        "namespaces.removeAutoSubscriptionCreation", "topicPolicies.getAutoSubscriptionCreation",
        "topicPolicies.setAutoSubscriptionCreation",
        "topicPolicies.removeAutoSubscriptionCreation",
        "brokers.backlogQuotaCheck", "topics.getBacklogSizeByMessageId",
        "namespaces.getBacklogQuotaMap", "namespaces.setBacklogQuota",
        "namespaces.removeBacklogQuota", "topicPolicies.getBacklogQuotaMap",
        "topicPolicies.setBacklogQuota", "topicPolicies.removeBacklogQuota",
        "topics.getBacklogQuotaMap", "topics.setBacklogQuota", "topics.removeBacklogQuota");
    private static final Pattern RATES_AND_LIMITS = Pattern.compile(
        "(namespaces|topics|topicPolicies)\\.(get|set|remove)"
            + "((Dispatch|Publish|Subscribe|SubscriptionDispatch)Rate|Max[A-Za-z]+)");
    /** The client reads no body of the answer: its own words for 501 are all that it has. */
    private static final Set<String> REASON_DROPPED =
        Set.of("functions.downloadFunction", "packages.download");
    private static final Set<Class<?>> UPLOADING =
        Set.of(Functions.class, Sinks.class, Sources.class);
    private static final String CLIENTS_OWN_WORDS = "Not Implemented";

    interface Step {
        void run() throws Exception;
    }

    private final PulsarAdmin admin;
    private final PulsarClient client;
    private final File file;

    private AdminPeer(String httpUrl, String serviceUrl) throws Exception {
        this.admin = PulsarAdmin.builder().serviceHttpUrl(httpUrl).build();
        this.client = PulsarClient.builder().serviceUrl(serviceUrl).build();
        this.file = File.createTempFile("function", ".jar");
        this.file.deleteOnExit();
    }

    public static void main(String[] args) {
        try {
            new AdminPeer(args[0], args[1]).run();
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    private void run() throws Exception {
        step("clusters", this::clusters);
        step("tenants", this::tenants);
        step("namespaces", this::namespaces);
        step("permissions", this::permissions);
        step("topics", this::topics);
        step("partitioned topics", this::partitionedTopics);
        step("stats", this::stats);
        step("stats of partitions", this::partitionStats);
        step("subscriptions", this::subscriptions);
        step("names", this::names);
        step("schemas", this::schemas);
        step("policies of schemas", this::schemaPolicies);
        step("policies of namespaces", this::namespacePolicies);
        step("policies of topics", this::topicPolicies);
        step("messages expire", this::expiry);
        step("single messages", this::messages);
        step("compaction", this::compaction);
        step("terminated topics", this::terminated);
        step("backlog quotas", this::backlogQuotas);
        step("rates and limits", this::ratesAndLimits);
        step("brokers and bundles", this::bundles);
        step("moving a subscription is refused", this::moving);
        step("deletions", this::deletions);
        step("everything else is refused", this::everythingElse);
    }

    private void step(String name, Step step) throws Exception {
        step.run();
        System.out.println("ok " + name);
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    private static void same(Object found, Object wanted, String what) {
        check(Objects.equals(found, wanted), what + ": " + found + ", not " + wanted);
    }

    /** The step must be refused at once, by an exception of that class, with these words. */
    private static void refused(Class<? extends PulsarAdminException> how, String words, Step step)
        throws Exception {
        long begun = System.nanoTime();
        try {
            step.run();
        } catch (PulsarAdminException refusal) {
            check(refusal.getClass() == how, refusal + " is no " + how);
            String said = String.valueOf(refusal.getHttpError());
            check(said.contains(words), "'" + words + "' in: " + said);
            check(System.nanoTime() - begun < TimeUnit.SECONDS.toNanos(AT_ONCE_S), "at once");
            return;
        }
        throw new AssertionError("not refused: " + words);
    }

    // -- what is served ---------------------------------------------------------------------------

    private void clusters() throws Exception {
        same(admin.clusters().getClusters(), List.of("standalone"), "clusters");
        check(admin.clusters().getCluster("standalone").getBrokerServiceUrl() != null, "its URL");
        refused(NotFoundException.class, "it knows no other",
            () -> admin.clusters().getCluster("other"));
        admin.brokers().healthcheck();
        admin.brokers().healthcheck(TopicVersion.V2);
        check(admin.brokers().getVersion().matches("[0-9.]+.*"), "the version");
    }

    private static TenantInfo tenant(String... roles) {
        return TenantInfo.builder().adminRoles(Set.of(roles))
            .allowedClusters(Set.of("standalone")).build();
    }

    private void tenants() throws Exception {
        admin.tenants().createTenant("peer", tenant());
        check(admin.tenants().getTenants().contains("peer"), "it is listed");
        same(admin.tenants().getTenantInfo("peer").getAllowedClusters(), Set.of("standalone"),
            "its clusters");
        refused(ConflictException.class, "exists already",
            () -> admin.tenants().createTenant("peer", tenant()));
        admin.tenants().createTenant("roles", tenant("root"));
        same(admin.tenants().getTenantInfo("roles").getAdminRoles(), Set.of("root"), "its admins");
        admin.tenants().updateTenant("roles", tenant("other", "root"));
        same(admin.tenants().getTenantInfo("roles").getAdminRoles(), Set.of("other", "root"),
            "its admins then");
        refused(NotFoundException.class, "does not exist",
            () -> admin.tenants().getTenantInfo("absent"));
    }

    private void namespaces() throws Exception {
        admin.namespaces().createNamespace(NAMESPACE);
        admin.namespaces().createNamespace("peer/bundles", 4);
        admin.namespaces().createNamespace("peer/clusters", Set.of("standalone"));
        admin.namespaces().createNamespace("peer/policies", new Policies());
        same(new HashSet<>(admin.namespaces().getNamespaces("peer")),
            Set.of(NAMESPACE, "peer/bundles", "peer/clusters", "peer/policies"), "namespaces");
        refused(ConflictException.class, "exists already",
            () -> admin.namespaces().createNamespace(NAMESPACE));
        refused(NotFoundException.class, "tenant absent does not exist",
            () -> admin.namespaces().createNamespace("absent/a"));
        Policies kept = new Policies();
        kept.retention_policies = new RetentionPolicies(5, 5);
        admin.namespaces().createNamespace("peer/kept", kept);
        same(admin.namespaces().getRetention("peer/kept"), kept.retention_policies, "what was said");
        kept.encryption_required = true;
        refused(PreconditionFailedException.class, "encryption_required",
            () -> admin.namespaces().createNamespace("peer/encrypted", kept));
        Policies shown = admin.namespaces().getPolicies("peer/kept");
        same(shown.retention_policies, new RetentionPolicies(5, 5), "what is shown");
        same(shown.replication_clusters, Set.of("standalone"), "its clusters");
        admin.namespaces().setNamespaceReplicationClusters(NAMESPACE, Set.of("standalone"));
        same(admin.namespaces().getNamespaceReplicationClusters(NAMESPACE),
            List.of("standalone"), "its clusters");
        same(shown.bundles.getNumBundles(), 4, "its bundles");
        same(shown.message_ttl_in_seconds, null, "what nobody has said");
        check(!shown.deleted && shown.auth_policies.getNamespaceAuthentication().isEmpty(), "else");
    }

    private void permissions() throws Exception {
        Set<AuthAction> both = Set.of(AuthAction.produce, AuthAction.consume);
        admin.namespaces().grantPermissionOnNamespace(NAMESPACE, "app", both);
        admin.namespaces().grantPermissionOnNamespace(NAMESPACE, "reader",
            Set.of(AuthAction.consume));
        same(admin.namespaces().getPermissions(NAMESPACE),
            Map.of("app", both, "reader", Set.of(AuthAction.consume)), "of the namespace");
        admin.namespaces().revokePermissionsOnNamespace(NAMESPACE, "reader");
        String topic = "persistent://peer/a/permitted";
        admin.topics().createNonPartitionedTopic(topic);
        admin.topics().grantPermission(topic, "writer", Set.of(AuthAction.produce));
        same(admin.topics().getPermissions(topic),
            Map.of("app", both, "writer", Set.of(AuthAction.produce)), "of the topic");
        admin.topics().revokePermissions(topic, "writer");
        same(admin.topics().getPermissions(topic), Map.of("app", both), "of the topic then");
        admin.topics().delete(topic);
        admin.namespaces().revokePermissionsOnNamespace(NAMESPACE, "app");
        same(admin.namespaces().getPermissions(NAMESPACE), Map.of(), "of the namespace then");
    }

    private void topics() throws Exception {
        admin.topics().createNonPartitionedTopic(TOPIC);
        same(admin.topics().getList(NAMESPACE), List.of(TOPIC), "topics");
        same(admin.namespaces().getTopics(NAMESPACE), List.of(TOPIC), "topics");
        same(admin.topics().getPartitionedTopicMetadata(TOPIC).partitions, 0, "partitions");
        check(admin.lookups().lookupTopic(TOPIC).startsWith("pulsar://"), "where it is served");
        refused(ConflictException.class, "exists already",
            () -> admin.topics().createNonPartitionedTopic(TOPIC));
        refused(PreconditionFailedException.class, "properties of topics: key",
            () -> admin.topics().createNonPartitionedTopic(TOPIC + 2, Map.of("key", "value")));
        refused(NotFoundException.class, "not", () -> admin.topics().getStats(TOPIC + 3));
        admin.topics().createNonPartitionedTopic(TOPIC + 4);
        admin.topics().delete(TOPIC + 4);
        refused(NotFoundException.class, "not", () -> admin.topics().delete(TOPIC + 4));
    }

    private void partitionedTopics() throws Exception {
        String topic = "persistent://peer/a/parts";
        admin.topics().createPartitionedTopic(topic, 3);
        same(admin.topics().getPartitionedTopicMetadata(topic).partitions, 3, "partitions");
        same(admin.topics().getPartitionedTopicList(NAMESPACE), List.of(topic), "their list");
        same(admin.lookups().lookupPartitionedTopic(topic).size(), 3, "where they are");
        admin.topics().updatePartitionedTopic(topic, 5);
        same(admin.topics().getPartitionedTopicMetadata(topic).partitions, 5, "more partitions");
        refused(ConflictException.class, "exists already",
            () -> admin.topics().createPartitionedTopic(topic, 3));
        refused(PreconditionFailedException.class, "properties not served",
            () -> admin.topics().createPartitionedTopic(topic + 2, 3, Map.of("key", "value")));
        refused(PreconditionFailedException.class, "partitioned",
            () -> admin.topics().delete(topic));
        admin.topics().deletePartitionedTopic(topic);
        same(admin.topics().getPartitionedTopicList(NAMESPACE), List.of(), "none is left");
    }

    private void publish(String topic, int batches, int each) throws Exception {
        try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(each > 1)
            .batchingMaxMessages(each).batchingMaxPublishDelay(10, TimeUnit.SECONDS).create()) {
            for (int number = 0; number < batches * each; number++) {
                producer.sendAsync("message".getBytes());
            }
            producer.flush();
        }
    }

    private Consumer<byte[]> consumer(String topic) throws Exception {
        return client.newConsumer().topic(topic).subscriptionName("s")
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
    }

    private void stats() throws Exception {
        String topic = "persistent://peer/a/stats";
        try (Consumer<byte[]> consumer = consumer(topic)) {
            publish(topic, 3, 10);
            MessageId last = null;
            for (int number = 0; number < 10; number++) {
                last = consumer.receive(AT_ONCE_S, TimeUnit.SECONDS).getMessageId();
            }
            consumer.acknowledgeCumulative(last);
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(20);
            while (admin.topics().getStats(topic).getSubscriptions().get("s").getMsgBacklog() > 20) {
                check(System.nanoTime() < deadline, "ten are acknowledged");
            }
            TopicStats stats = admin.topics().getStats(topic, true, true, true);
            SubscriptionStats subscription = stats.getSubscriptions().get("s");
            same(stats.getMsgInCounter(), 30L, "messages in");
            check(stats.getStorageSize() > 0, "bytes stored");
            check(stats.getBacklogSize() > 0, "bytes of the backlog");
            same(subscription.getMsgBacklog(), 20L, "messages of the backlog");
            same(subscription.getType(), "Exclusive", "its type");
            same(subscription.getConsumers().size(), 1, "its consumers");
            check(admin.topics().getInternalStats(topic).ledgers.size() > 0, "its ledgers");
        }
    }

    private void partitionStats() throws Exception {
        String topic = "persistent://peer/a/stats-parts";
        admin.topics().createPartitionedTopic(topic, 2);
        try (Consumer<byte[]> consumer = consumer(topic)) {
            publish(topic, 10, 1);
            var stats = admin.topics().getPartitionedStats(topic, true);
            same(stats.getMsgInCounter(), 10L, "messages in");
            same(stats.getSubscriptions().get("s").getMsgBacklog(), 10L, "of the backlog");
            same(stats.getPartitions().keySet(),
                Set.of(topic + "-partition-0", topic + "-partition-1"), "its partitions");
        }
        admin.topics().deletePartitionedTopic(topic, true);
    }

    private void terminated() throws Exception {
        String topic = "persistent://peer/a/ended";
        CountDownLatch ended = new CountDownLatch(2);
        Producer<byte[]> producer =
            client.newProducer().topic(topic).enableBatching(false).create();
        Consumer<byte[]> listening = client.newConsumer().topic(topic).subscriptionName("listens")
            .messageListener(new MessageListener<byte[]>() {
                @Override
                public void received(Consumer<byte[]> from, Message<byte[]> message) {
                    from.acknowledgeAsync(message);
                }

                @Override
                public void reachedEndOfTopic(Consumer<byte[]> from) {
                    ended.countDown();
                }
            }).subscribe();
        Reader<byte[]> reader = client.newReader().topic(topic)
            .startMessageId(MessageId.earliest).readerListener(new ReaderListener<byte[]>() {
                @Override
                public void received(Reader<byte[]> from, Message<byte[]> message) { }

                @Override
                public void reachedEndOfTopic(Reader<byte[]> from) {
                    ended.countDown();
                }
            }).create();
        Consumer<byte[]> consumer = consumer(topic);
        MessageId last = null;
        for (int number = 0; number < 5; number++) {
            last = producer.send("message".getBytes());
        }
        same(admin.topics().terminateTopic(topic), last, "the last message");
        same(admin.topics().terminateTopicAsync(topic).get(), last, "again");
        check(ended.await(AT_ONCE_S, TimeUnit.SECONDS), "who has read all is told");
        for (int number = 0; number < 5; number++) {
            check(!consumer.hasReachedEndOfTopic(), "not all is acknowledged");
            consumer.acknowledge(consumer.receive(AT_ONCE_S, TimeUnit.SECONDS));
        }
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(AT_ONCE_S);
        while (!consumer.hasReachedEndOfTopic()) {
            check(System.nanoTime() < deadline, "who acknowledges the last is told");
            Thread.sleep(10);
        }
        for (Step late : List.<Step>of(() -> producer.send("late".getBytes()),
            () -> client.newProducer().topic(topic).create())) {
            try {
                late.run();
                throw new AssertionError("nothing may be published");
            } catch (PulsarClientException.TopicTerminatedException refusal) {
                check(refusal.getMessage().contains("terminated"), refusal.getMessage());
            }
        }
        same(admin.topics().getInternalStats(topic).state, "Terminated", "the log's state");
        check(reader.hasReachedEndOfTopic() && listening.isConnected(), "they stay connected");
        listening.close();
        reader.close();
        consumer.close();
        producer.close();
        String parts = "persistent://peer/a/ended-parts";
        admin.topics().createPartitionedTopic(parts, 3);
        same(admin.topics().terminatePartitionedTopic(parts).keySet(), Set.of(0, 1, 2), "each");
        refused(PreconditionFailedException.class, "3 partitions",
            () -> admin.topics().terminateTopic(parts));
        admin.topics().deletePartitionedTopic(parts);
        admin.topics().delete(topic, true);
    }

    private static BacklogQuota quota(BacklogQuota.RetentionPolicy policy, long size, int seconds) {
        return BacklogQuota.builder().limitSize(size).limitTime(seconds).retentionPolicy(policy)
            .build();
    }

    private static void fails(Class<? extends PulsarClientException> how, Step step)
        throws Exception {
        try {
            step.run();
        } catch (PulsarClientException failure) {
            check(how.isInstance(failure), failure + " is no " + how);
            return;
        }
        throw new AssertionError("it did not fail");
    }

    private void backlogQuotas() throws Exception {
        String topic = "persistent://peer/a/limited";
        BacklogQuotaType size = BacklogQuotaType.destination_storage;
        BacklogQuotaType age = BacklogQuotaType.message_age;
        TopicPolicies policies = admin.topicPolicies();
        BacklogQuota fails = quota(BacklogQuota.RetentionPolicy.producer_exception, 10_000, -1);
        BacklogQuota holds = quota(BacklogQuota.RetentionPolicy.producer_request_hold, 10_000, -1);
        BacklogQuota evicts =
            quota(BacklogQuota.RetentionPolicy.consumer_backlog_eviction, 10_000, -1);
        Consumer<byte[]> consumer = consumer(topic);
        Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false)
            .sendTimeout(1, TimeUnit.SECONDS).create();
        for (int number = 0; number < 20; number++) {
            producer.send(new byte[1000]);
        }
        check(admin.topics().getBacklogSizeByMessageId(topic, MessageId.earliest) > 20_000, "all");
        check(admin.topics().getStats(topic).getBacklogSize() > 20_000, "what is behind");
        same(policies.getBacklogQuotaMap(topic), Map.of(), "nothing said");
        policies.setBacklogQuota(topic, fails, size);
        same(policies.getBacklogQuotaMap(topic), Map.of(size, fails), "of the topic");
        same(policies.getBacklogQuotaMap(topic, true).keySet(), Set.of(size, age), "in force");
        admin.brokers().backlogQuotaCheck();
        fails(PulsarClientException.ProducerBlockedQuotaExceededException.class,
            () -> producer.send(new byte[1000]));
        policies.setBacklogQuota(topic, holds, size);
        admin.brokers().backlogQuotaCheck();
        fails(PulsarClientException.TimeoutException.class, () -> producer.send(new byte[1000]));
        policies.setBacklogQuota(topic, evicts, size);
        admin.brokers().backlogQuotaCheck();
        long left = backlogOf(topic, "s");
        check(left > 5 && left < 10, "nine tenths of the limit: " + left);
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (!producer.isConnected()) {
            check(System.nanoTime() < deadline, "the producer comes back by itself");
            Thread.sleep(50);
        }
        producer.send(new byte[1000]);
        same(backlogOf(topic, "s"), left + 1, "and goes on");
        policies.removeBacklogQuota(topic, size);
        same(policies.getBacklogQuotaMap(topic), Map.of(), "removed");
        BacklogQuota old = quota(BacklogQuota.RetentionPolicy.producer_exception, -1, 60);
        admin.namespaces().setBacklogQuota(NAMESPACE, fails, size);
        admin.namespaces().setBacklogQuota(NAMESPACE, old, age);
        same(admin.namespaces().getBacklogQuotaMap(NAMESPACE), Map.of(size, fails, age, old),
            "of the namespace");
        same(admin.topics().getStats(topic).getBacklogQuotaLimitTime(), 60L, "in stats");
        refused(PreconditionFailedException.class, "needs a retention of more",
            () -> admin.namespaces().setRetention(NAMESPACE, new RetentionPolicies(1, 1)));
        admin.namespaces().removeBacklogQuota(NAMESPACE);
        admin.namespaces().removeBacklogQuota(NAMESPACE, age);
        same(admin.namespaces().getBacklogQuotaMap(NAMESPACE), Map.of(), "removed");
        consumer.close();
        producer.close();
        admin.topics().delete(topic, true);
    }

    private void ratesAndLimits() throws Exception {
        TopicPolicies policies = admin.topicPolicies();
        policies.setMaxConsumers(TOPIC, 7);
        same(policies.getMaxConsumers(TOPIC), 7, "consumers");
        policies.removeMaxConsumers(TOPIC);
        same(policies.getMaxConsumers(TOPIC), null, "removed");
        PublishRate publishes = new PublishRate(100, 1 << 20);
        policies.setPublishRate(TOPIC, publishes);
        same(policies.getPublishRate(TOPIC), publishes, "what is published");
        policies.removePublishRate(TOPIC);
        same(policies.getPublishRate(TOPIC), null, "removed");
        DispatchRate dispatches = DispatchRate.builder().dispatchThrottlingRateInMsg(100)
            .dispatchThrottlingRateInByte(-1).ratePeriodInSecond(1).build();
        admin.namespaces().setDispatchRate(NAMESPACE, dispatches);
        same(admin.namespaces().getDispatchRate(NAMESPACE), dispatches, "what is dispatched");
        admin.namespaces().removeDispatchRate(NAMESPACE);
        admin.namespaces().setMaxProducersPerTopic(NAMESPACE, 9);
        same(admin.namespaces().getMaxProducersPerTopic(NAMESPACE), 9, "producers");
        admin.namespaces().removeMaxProducersPerTopic(NAMESPACE);
        same(admin.namespaces().getMaxProducersPerTopic(NAMESPACE), null, "removed");
    }

    private void subscriptions() throws Exception {
        String topic = "persistent://peer/a/subscriptions";
        try (Consumer<byte[]> consumer = consumer(topic)) {
            same(admin.topics().getSubscriptions(topic), List.of("s"), "subscriptions");
            refused(ConflictException.class, "",
                () -> admin.topics().deleteSubscription(topic, "s"));
        }
        admin.topics().deleteSubscription(topic, "s");
        same(admin.topics().getSubscriptions(topic), List.of(), "none is left");
        refused(NotFoundException.class, "",
            () -> admin.topics().deleteSubscription(topic, "a/b"));
    }

    private void names() throws Exception {
        for (String name : List.of("n ü", "a+b", "a%20b", "a&b=c?d", "partitions")) {
            String topic = "persistent://peer/a/" + name;
            admin.topics().createNonPartitionedTopic(topic);
            check(admin.topics().getList(NAMESPACE).contains(topic), "it is listed: " + topic);
            same(admin.topics().getStats(topic).getMsgInCounter(), 0L, "its messages");
            admin.topics().delete(topic);
            check(!admin.topics().getList(NAMESPACE).contains(topic), "it is gone: " + topic);
        }
        refused(PreconditionFailedException.class, "",
            () -> admin.topics().createNonPartitionedTopic("persistent://peer/a/" + "x".repeat(1100)));
    }

    private void messages() throws Exception {
        String topic = "persistent://peer/a/messages";
        Topics topics = admin.topics();
        try (Consumer<byte[]> consumer = consumer(topic);
            Producer<byte[]> plain = client.newProducer().topic(topic).enableBatching(false)
                .compressionType(CompressionType.LZ4).create();
            Producer<byte[]> batching = client.newProducer().topic(topic)
                .batchingMaxPublishDelay(1, TimeUnit.SECONDS).create()) {
            long begun = System.currentTimeMillis();
            MessageId first = plain.newMessage().key("k").eventTime(1000).value(new byte[100]).send();
            batching.newMessage().value("a".getBytes()).property("n", "1").sendAsync();
            MessageIdAdv last = (MessageIdAdv) batching.newMessage().value("b".getBytes())
                .property("n", "2").send();
            topics.createSubscription(topic, "skipping", MessageId.earliest);
            for (long left : new long[] {3, 2, 2, 0}) { // what is left of a batch counts whole
                same(topics.getStats(topic).getSubscriptions().get("skipping").getMsgBacklog(),
                    left, "the backlog");
                topics.skipMessages(topic, "skipping", 1);
            }
            topics.deleteSubscription(topic, "skipping");
            List<Message<byte[]>> found = topics.peekMessages(topic, "s", 3);
            same(found.size(), 3, "messages");
            Message<byte[]> one = found.get(0);
            same(one.getMessageId(), first, "the first id");
            check(Arrays.equals(one.getData(), new byte[100]), "the value, uncompressed");
            same(one.getEventTime(), 1000L, "its time");
            check(one.getPublishTime() >= begun, "when it was published: " + one.getPublishTime());
            same(one.getKey(), "k", "its key");
            same(new String(found.get(2).getData()), "b", "the last of a batch");
            same(found.get(2).getProperties().get("n"), "2", "its property");
            same(topics.getMessagesById(topic, last.getLedgerId(), last.getEntryId()).size(), 2,
                "the messages of a batch");
            same(topics.getMessageIdByTimestamp(topic, begun - 1000), first, "by its time");
            MessageIdAdv end = (MessageIdAdv) topics.getLastMessageId(topic);
            same(end, last, "the last id");
            same(topics.peekMessages(topic, "s", 9).size(), 3, "all there are");
            refused(NotFoundException.class, "has no entry",
                () -> topics.getMessagesById(topic, last.getLedgerId(), 1000));
        }
        topics.delete(topic);
    }

    // -- what is not ------------------------------------------------------------------------------

    private void bundles() throws Exception {
        List<String> brokers = admin.brokers().getActiveBrokers();
        same(brokers.size(), 1, "brokers");
        String cluster = admin.clusters().getClusters().get(0);
        same(admin.brokers().getActiveBrokers(cluster), brokers, "brokers of the cluster");
        refused(NotFoundException.class, "it knows no other",
            () -> admin.brokers().getActiveBrokers("another"));
        admin.brokers().getOwnedNamespaces(cluster, brokers.get(0));
        same(admin.brokers().getRuntimeConfigurations().get("clusterName"), cluster, "its name");
        same(admin.namespaces().getBundles(NAMESPACE).getNumBundles(), 4, "bundles");
        admin.topics().unload(TOPIC);
        admin.namespaces().unload(NAMESPACE);
        admin.namespaces().unloadNamespaceBundle(NAMESPACE, "0x00000000_0x40000000");
        refused(NotFoundException.class, "has no bundle",
            () -> admin.namespaces().unloadNamespaceBundle(NAMESPACE, "0x00000000_0xffffffff"));
        check(admin.topics().getList(NAMESPACE).contains(TOPIC), "it is still there");
    }

    private void deletions() throws Exception {
        admin.tenants().createTenant("gone", tenant());
        admin.namespaces().createNamespace("gone/a");
        String topic = "persistent://gone/a/t";
        refused(ConflictException.class, "tenant gone has 1 namespaces (a)",
            () -> admin.tenants().deleteTenant("gone"));
        Consumer<byte[]> consumer = consumer(topic);
        refused(ConflictException.class, "gone/a has 1 topics (t)",
            () -> admin.namespaces().deleteNamespace("gone/a"));
        check(consumer.isConnected(), "nobody was sent away");
        admin.namespaces().deleteNamespace("gone/a", true);
        consumer.close();
        refused(NotFoundException.class, "gone/a does not exist",
            () -> admin.topics().createNonPartitionedTopic(topic));
        refused(NotFoundException.class, "gone/a does not exist",
            () -> admin.namespaces().deleteNamespace("gone/a"));
        admin.namespaces().createNamespace("gone/a");
        same(admin.topics().getList("gone/a"), List.of(), "it is another one");
        admin.namespaces().deleteNamespace("gone/a");
        admin.namespaces().createNamespace("gone/b");
        admin.tenants().deleteTenant("gone", true);
        check(!admin.tenants().getTenants().contains("gone"), "it is gone");
        refused(ConflictException.class, "public/default cannot be deleted",
            () -> admin.namespaces().deleteNamespace("public/default", true));
    }

    private void moving() throws Exception {
        String words = "not served: expiring up to a message id";
        Class<ServerSideErrorException> how = ServerSideErrorException.class;
        Topics topics = admin.topics();
        refused(NotFoundException.class, "no subscription s",
            () -> topics.skipMessages(TOPIC, "s", 1));
        refused(how, words, () -> topics.expireMessages(TOPIC, "s", MessageId.earliest, false));
        refused(NotFoundException.class, "no subscription s",
            () -> topics.skipAllMessages(TOPIC, "s"));
        moved();
        topics.createSubscription(TOPIC, "s", MessageId.earliest);
        check(topics.getSubscriptions(TOPIC).contains("s"), "it is made");
        topics.deleteSubscription(TOPIC, "s");
        check(!topics.getSubscriptions(TOPIC).contains("s"), "it is deleted");
    }

    /** A consumer that is there is sent away, and gets what follows from where it was moved to. */
    private void moved() throws Exception {
        String topic = "persistent://peer/a/moved";
        Topics topics = admin.topics();
        topics.createNonPartitionedTopic(topic);
        List<MessageId> sent = new ArrayList<>();
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
            Producer<byte[]> producer =
                client.newProducer().topic(topic).enableBatching(false).create()) {
            for (int number = 0; number < 5; number++) {
                sent.add(producer.send(("" + number).getBytes()));
            }
            topics.skipAllMessages(topic, "s");
            same(backlogOf(topic, "s"), 0L, "nothing is left");
            topics.resetCursor(topic, "s", sent.get(3));
            same(backlogOf(topic, "s"), 2L, "from that message on");
            topics.resetCursor(topic, "s", sent.get(3), true);
            same(backlogOf(topic, "s"), 1L, "behind it");
            topics.resetCursor(topic, "s", 1L);
            same(backlogOf(topic, "s"), 5L, "everything is later");
            topics.resetCursor(topic, "s", MessageId.latest);
            same(backlogOf(topic, "s"), 0L, "the end");
            topics.resetCursor(topic, "s", MessageId.earliest);
            same(backlogOf(topic, "s"), 5L, "the beginning");
            producer.send("5".getBytes());
            List<String> got = new ArrayList<>();
            do { // what was on its way before may come first
                got.add(new String(consumer.receive(30, TimeUnit.SECONDS).getData()));
            } while (!got.get(got.size() - 1).equals("5"));
            same(got.subList(Math.max(0, got.size() - 6), got.size()),
                List.of("0", "1", "2", "3", "4", "5"), "all, in their order");
        }
        topics.delete(topic);
    }

    private static SchemaInfo avro(String fields) {
        String text = "{\"type\":\"record\",\"name\":\"R\",\"fields\":[" + fields + "]}";
        return SchemaInfo.builder().name("s").type(SchemaType.AVRO).schema(text.getBytes())
            .properties(Map.of("owner", "peer")).build();
    }

    private static final SchemaInfo ONE = avro("{\"name\":\"a\",\"type\":\"int\"}");
    private static final SchemaInfo TWO = avro("{\"name\":\"a\",\"type\":\"int\"},"
        + "{\"name\":\"b\",\"type\":\"int\",\"default\":0}");
    private static final SchemaInfo WRONG = avro("{\"name\":\"a\",\"type\":\"string\"}");

    private void schemas() throws Exception {
        Schemas schemas = admin.schemas();
        refused(NotFoundException.class, "has no schema", () -> schemas.getSchemaInfo(TOPIC));
        schemas.createSchema(TOPIC, ONE);
        schemas.createSchema(TOPIC, TWO);
        schemas.createSchema(TOPIC, ONE);
        same(schemas.getSchemaInfo(TOPIC).getSchemaDefinition(), TWO.getSchemaDefinition(),
            "the newest");
        same(schemas.getSchemaInfo(TOPIC, 0).getProperties(), Map.of("owner", "peer"), "the first");
        same(schemas.getSchemaInfoWithVersion(TOPIC).getVersion(), 1L, "its version");
        same(schemas.getAllSchemas(TOPIC).size(), 2, "versions");
        same(schemas.getVersionBySchema(TOPIC, ONE), 0L, "the version of the first");
        same(schemas.getVersionBySchema(TOPIC, WRONG), -1L, "the version of none");
        check(schemas.testCompatibility(TOPIC, TWO).isCompatibility(), "it may follow");
        check(!schemas.testCompatibility(TOPIC, WRONG).isCompatibility(), "it may not");
        refused(ConflictException.class, "R.a", () -> schemas.createSchema(TOPIC, WRONG));
        schemas.deleteSchema(TOPIC);
        refused(NotFoundException.class, "has no schema", () -> schemas.getSchemaInfo(TOPIC, 0));
        schemas.createSchema(TOPIC, WRONG);
        same(schemas.getSchemaInfoWithVersion(TOPIC).getVersion(), 3L, "no number twice");
        schemas.deleteSchema(TOPIC, true);
    }

    private void schemaPolicies() throws Exception {
        Namespaces namespaces = admin.namespaces();
        same(namespaces.getSchemaCompatibilityStrategy(NAMESPACE),
            SchemaCompatibilityStrategy.UNDEFINED, "nothing said");
        for (SchemaCompatibilityStrategy each : SchemaCompatibilityStrategy.values()) {
            namespaces.setSchemaCompatibilityStrategy(NAMESPACE, each);
            same(namespaces.getSchemaCompatibilityStrategy(NAMESPACE), each, "what was set");
        }
        namespaces.setSchemaCompatibilityStrategy(NAMESPACE, SchemaCompatibilityStrategy.UNDEFINED);
        namespaces.setSchemaValidationEnforced(NAMESPACE, true);
        check(namespaces.getSchemaValidationEnforced(NAMESPACE), "enforced");
        namespaces.setSchemaValidationEnforced(NAMESPACE, false);
        namespaces.setIsAllowAutoUpdateSchema(NAMESPACE, false);
        check(!namespaces.getIsAllowAutoUpdateSchema(NAMESPACE), "not allowed");
        namespaces.setIsAllowAutoUpdateSchema(NAMESPACE, true);
    }

    private static final RetentionPolicies RETENTION = new RetentionPolicies(60, -1);
    private static final PersistencePolicies PERSISTENCE = new PersistencePolicies(3, 2, 2, 0.5);
    private static final DelayedDeliveryPolicies DELAYED = DelayedDeliveryPolicies.builder()
        .active(true).tickTime(500).maxDeliveryDelayInMillis(60_000).build();

    private void automaticCreation(Namespaces namespaces) throws Exception {
        same(namespaces.getAutoTopicCreation(NAMESPACE), null, "nothing said");
        AutoTopicCreationOverride three = AutoTopicCreationOverride.builder()
            .allowAutoTopicCreation(true).topicType("partitioned").defaultNumPartitions(3).build();
        namespaces.setAutoTopicCreation(NAMESPACE, three);
        same(namespaces.getAutoTopicCreation(NAMESPACE), three, "topics of three partitions");
        String topic = "persistent://peer/a/automatic";
        publish(topic, 6, 1);
        same(admin.topics().getPartitionedTopicMetadata(topic).partitions, 3, "its partitions");
        admin.topics().deletePartitionedTopic(topic);
        namespaces.setAutoTopicCreation(NAMESPACE,
            AutoTopicCreationOverride.builder().allowAutoTopicCreation(false).build());
        try {
            publish(topic, 1, 1);
            throw new AssertionError("no topic may be made");
        } catch (PulsarClientException.TopicDoesNotExistException
            | PulsarClientException.NotFoundException refusal) {
            check(refusal.getMessage().contains("does not exist"), refusal.getMessage());
        }
        namespaces.removeAutoTopicCreation(NAMESPACE);
        same(namespaces.getAutoTopicCreation(NAMESPACE), null, "removed");
        same(namespaces.getAutoSubscriptionCreation(NAMESPACE), null, "nothing said");
        AutoSubscriptionCreationOverride none = AutoSubscriptionCreationOverride.builder()
            .allowAutoSubscriptionCreation(false).build();
        namespaces.setAutoSubscriptionCreation(NAMESPACE, none);
        same(namespaces.getAutoSubscriptionCreation(NAMESPACE), none, "no subscriptions");
        admin.topics().createNonPartitionedTopic(topic);
        try {
            consumer(topic);
            throw new AssertionError("no subscription may be made");
        } catch (PulsarClientException.SubscriptionNotFoundException refusal) {
            check(refusal.getMessage().contains("no subscription s"), refusal.getMessage());
        }
        admin.topics().createSubscription(topic, "s", MessageId.earliest);
        consumer(topic).close();
        namespaces.removeAutoSubscriptionCreation(NAMESPACE);
        same(namespaces.getAutoSubscriptionCreation(NAMESPACE), null, "removed");
        admin.topicPolicies().setAutoSubscriptionCreation(topic, none);
        same(admin.topicPolicies().getAutoSubscriptionCreation(topic, false), none, "the topic's");
        admin.topicPolicies().removeAutoSubscriptionCreation(topic);
        admin.topics().delete(topic);
    }

    private void namespacePolicies() throws Exception {
        Namespaces namespaces = admin.namespaces();
        same(namespaces.getDeduplicationStatus(NAMESPACE), null, "nothing said");
        namespaces.setDeduplicationStatus(NAMESPACE, true);
        same(namespaces.getDeduplicationStatus(NAMESPACE), true, "what is sent again");
        namespaces.removeDeduplicationStatus(NAMESPACE);
        same(namespaces.getDeduplicationStatus(NAMESPACE), null, "removed");
        automaticCreation(namespaces);
        same(namespaces.getRetention(NAMESPACE), null, "nothing said");
        namespaces.setRetention(NAMESPACE, RETENTION);
        same(namespaces.getRetention(NAMESPACE), RETENTION, "retention");
        refused(PreconditionFailedException.class, "both are 0",
            () -> namespaces.setRetention(NAMESPACE, new RetentionPolicies(0, 5)));
        namespaces.removeRetention(NAMESPACE);
        same(namespaces.getRetention(NAMESPACE), null, "retention removed");
        same(namespaces.getNamespaceMessageTTL(NAMESPACE), null, "nothing said");
        namespaces.setNamespaceMessageTTL(NAMESPACE, 30);
        same(namespaces.getNamespaceMessageTTL(NAMESPACE), 30, "time to live");
        namespaces.removeNamespaceMessageTTL(NAMESPACE);
        same(namespaces.getNamespaceMessageTTL(NAMESPACE), null, "time to live removed");
        namespaces.setPersistence(NAMESPACE, PERSISTENCE);
        same(namespaces.getPersistence(NAMESPACE), PERSISTENCE, "persistence");
        namespaces.removePersistence(NAMESPACE);
        same(namespaces.getPersistence(NAMESPACE), null, "persistence removed");
        namespaces.setSubscriptionExpirationTime(NAMESPACE, 90);
        same(namespaces.getSubscriptionExpirationTime(NAMESPACE), 90, "expiration");
        namespaces.removeSubscriptionExpirationTime(NAMESPACE);
        same(namespaces.getSubscriptionExpirationTime(NAMESPACE), null, "expiration removed");
        namespaces.setDelayedDeliveryMessages(NAMESPACE, DELAYED);
        same(namespaces.getDelayedDelivery(NAMESPACE), DELAYED, "delayed delivery");
        namespaces.removeDelayedDeliveryMessages(NAMESPACE);
        same(namespaces.getDelayedDelivery(NAMESPACE), null, "delayed delivery removed");
    }

    private void topicPolicies() throws Exception {
        TopicPolicies policies = admin.topicPolicies();
        same(policies.getDeduplicationStatus(TOPIC), null, "nothing said");
        same(policies.getDeduplicationStatus(TOPIC, true), false, "as configured");
        policies.setDeduplicationStatus(TOPIC, true);
        same(policies.getDeduplicationStatus(TOPIC), true, "what is sent again");
        policies.removeDeduplicationStatus(TOPIC);
        same(policies.getDeduplicationStatus(TOPIC), null, "removed");
        same(policies.getRetention(TOPIC), null, "nothing said");
        same(policies.getRetention(TOPIC, true), new RetentionPolicies(-1, -1), "as configured");
        policies.setRetention(TOPIC, RETENTION);
        same(policies.getRetention(TOPIC), RETENTION, "retention");
        same(policies.getRetention(TOPIC, true), RETENTION, "in force");
        policies.removeRetention(TOPIC);
        same(policies.getRetention(TOPIC), null, "retention removed");
        same(policies.getMessageTTL(TOPIC), null, "nothing said");
        policies.setMessageTTL(TOPIC, 30);
        same(policies.getMessageTTL(TOPIC, true), 30, "time to live");
        policies.removeMessageTTL(TOPIC);
        same(policies.getMessageTTL(TOPIC), null, "time to live removed");
        policies.setPersistence(TOPIC, PERSISTENCE);
        same(policies.getPersistence(TOPIC), PERSISTENCE, "persistence");
        policies.removePersistence(TOPIC);
        same(policies.getPersistence(TOPIC), null, "persistence removed");
        policies.setDelayedDeliveryPolicy(TOPIC, DELAYED);
        same(policies.getDelayedDeliveryPolicy(TOPIC, true), DELAYED, "delayed delivery");
        policies.removeDelayedDeliveryPolicy(TOPIC);
        same(policies.getDelayedDeliveryPolicy(TOPIC), null, "delayed delivery removed");
        same(policies.getSchemaCompatibilityStrategy(TOPIC, false), null, "nothing said");
        policies.setSchemaCompatibilityStrategy(TOPIC, SchemaCompatibilityStrategy.FULL);
        same(policies.getSchemaCompatibilityStrategy(TOPIC, true),
            SchemaCompatibilityStrategy.FULL, "strategy");
        policies.removeSchemaCompatibilityStrategy(TOPIC);
        same(policies.getSchemaCompatibilityStrategy(TOPIC, false), null, "strategy removed");
        check(!admin.topics().getSchemaValidationEnforced(TOPIC, false), "nothing said");
        admin.topics().setSchemaValidationEnforced(TOPIC, true);
        check(admin.topics().getSchemaValidationEnforced(TOPIC, true), "enforced");
        admin.topics().setSchemaValidationEnforced(TOPIC, false);
        refused(NotFoundException.class, "does not exist",
            () -> policies.setRetention(TOPIC + "-unknown", RETENTION));
    }

    private void expiry() throws Exception {
        String topic = "persistent://peer/a/expiry";
        admin.topics().createNonPartitionedTopic(topic);
        try (Consumer<byte[]> one = client.newConsumer().topic(topic).subscriptionName("one")
                .subscribe();
            Consumer<byte[]> two = client.newConsumer().topic(topic).subscriptionName("two")
                .subscribe();
            Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
            producer.send("1".getBytes());
            producer.send("2".getBytes());
            Thread.sleep(1500);
            admin.topics().expireMessages(topic, "one", 1);
            same(backlogOf(topic, "one"), 0L, "expired for one");
            same(backlogOf(topic, "two"), 2L, "not for the other");
            admin.topics().expireMessagesForAllSubscriptions(topic, 1);
            same(backlogOf(topic, "two"), 0L, "expired for all");
            refused(NotFoundException.class, "no subscription three",
                () -> admin.topics().expireMessages(topic, "three", 1));
        }
        admin.topics().delete(topic);
    }

    private void compaction() throws Exception {
        String topic = "persistent://peer/a/compacted";
        try (Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
            for (int number = 0; number < 10; number++) {
                producer.newMessage().key("k" + number % 2).value(("" + number).getBytes()).send();
            }
        }
        same(admin.topics().compactionStatus(topic).status, LongRunningProcessStatus.Status.NOT_RUN,
            "before");
        admin.topics().triggerCompaction(topic);
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (admin.topics().compactionStatus(topic).status
            != LongRunningProcessStatus.Status.SUCCESS) {
            check(System.nanoTime() < deadline, "it does not end");
            Thread.sleep(100);
        }
        List<String> found = new ArrayList<>();
        try (Reader<byte[]> reader = client.newReader().topic(topic).readCompacted(true)
                .startMessageId(MessageId.earliest).create()) {
            while (reader.hasMessageAvailable()) {
                found.add(new String(reader.readNext(30, TimeUnit.SECONDS).getData()));
            }
        }
        same(found, List.of("8", "9"), "the last of each key");
        admin.topics().delete(topic);
    }

    private long backlogOf(String topic, String subscription) throws Exception {
        return admin.topics().getStats(topic).getSubscriptions().get(subscription).getMsgBacklog();
    }

    private void everythingElse() throws Exception {
        List<String> wrong = new ArrayList<>();
        int refused = 0;
        for (Method getter : PulsarAdmin.class.getMethods()) {
            Class<?> part = getter.getReturnType();
            if (getter.getParameterCount() > 0 || !part.isInterface()
                || Modifier.isStatic(getter.getModifiers())
                || !part.getPackageName().equals("org.apache.pulsar.client.admin")) {
                continue;
            }
            Object made = getter.invoke(admin);
            Method[] methods = part.getMethods();
            Arrays.sort(methods, Comparator.comparing(Method::toString));
            for (Method method : methods) {
                String name = getter.getName() + "." + method.getName();
                if (SERVED.contains(name) || RATES_AND_LIMITS.matcher(name).matches()
                    || Modifier.isStatic(method.getModifiers())
                    || method.getReturnType() == CompletableFuture.class) {
                    continue;
                }
                String found = outcome(name, part, made, method);
                if (found == null) {
                    refused++;
                } else {
                    wrong.add(name + "/" + method.getParameterCount() + ": " + found);
                }
            }
        }
        check(wrong.isEmpty(), String.join("\n", wrong));
        check(refused > 300, "the client has more methods than " + refused);
        same(new HashSet<>(admin.topics().getList(NAMESPACE)),
            Set.of(TOPIC, "persistent://peer/a/stats", "persistent://peer/a/subscriptions"),
            "nothing was made or deleted");
    }

    /** null if the call is refused as not served, else what came of it. */
    private String outcome(String name, Class<?> part, Object made, Method method)
        throws Exception {
        Class<?>[] types = method.getParameterTypes();
        Object[] arguments = new Object[types.length];
        for (int index = 0; index < types.length; index++) {
            arguments[index] = argument(types[index], part, method.getName(), index);
        }
        try {
            return "done: " + method.invoke(made, arguments);
        } catch (InvocationTargetException thrown) {
            Throwable failure = thrown.getCause();
            if (!(failure instanceof PulsarAdminException)) {
                return failure.toString();
            }
            PulsarAdminException refusal = (PulsarAdminException) failure;
            String words = REASON_DROPPED.contains(name) ? CLIENTS_OWN_WORDS : "not served";
            boolean clear = String.valueOf(refusal.getHttpError()).contains(words);
            boolean fits = refusal.getStatusCode() == 501 || refusal.getStatusCode() == 412;
            return clear && fits ? null
                : refusal.getStatusCode() + " " + refusal.getHttpError() + " " + refusal;
        }
    }

    /** Something that a program would say at this place. */
    private Object argument(Class<?> type, Class<?> part, String method, int index)
        throws Exception {
        if (type == String.class) {
            return text(part, method, index);
        } else if (type == int.class || type == Integer.class) {
            return 1;
        } else if (type == long.class || type == Long.class) {
            return 1L;
        } else if (type == boolean.class || type == Boolean.class) {
            return false;
        } else if (type == Set.class) {
            return new HashSet<>(Set.of("standalone"));
        } else if (type == List.class) {
            return new ArrayList<>(List.of("standalone"));
        } else if (type == Map.class) {
            return new HashMap<>(Map.of("key", "value"));
        } else if (type == Optional.class) {
            return Optional.empty();
        } else if (type == MessageId.class) {
            return MessageId.earliest;
        } else if (type == TxnID.class) {
            return new TxnID(0, 1);
        } else if (type == SchemaInfo.class) {
            return SchemaInfo.builder().name("s").type(SchemaType.STRING).schema(new byte[0])
                .properties(Map.of()).build();
        } else if (type.isEnum()) {
            return type.getEnumConstants()[0];
        }
        return whole(type);
    }

    private String text(Class<?> part, String method, int index) {
        if (part == ResourceQuotas.class) {
            return index == 0 ? NAMESPACE : "0x00000000_0xffffffff";
        } else if (part == Packages.class) {
            if (method.equals("listPackages")) {
                return index == 0 ? "function" : NAMESPACE;
            }
            boolean named = index == (method.equals("upload") ? 1 : 0);
            return named ? "function://peer/a/name@v1" : file.getPath();
        } else if (method.endsWith("InBundle")) {
            return index == 0 ? NAMESPACE : "0x00000000_0xffffffff";
        } else if (index == 0 && Set.of(Topics.class, NonPersistentTopics.class, Lookup.class,
            Schemas.class, TopicPolicies.class).contains(part)) {
            return TOPIC;
        } else if (part == Transactions.class && index < 2) {
            return index == 0 ? TOPIC : "s";
        } else if (part == Namespaces.class) {
            return index == 0 ? NAMESPACE
                : method.contains("undle") || method.endsWith("HashPositions")
                ? "0x00000000_0xffffffff" : "x";
        }
        if (method.startsWith("download") && index == 0) {  // or it lies where this was started
            File got = new File(file.getPath() + ".got");
            got.deleteOnExit();
            return got.getPath();
        }
        boolean uploads = UPLOADING.stream().anyMatch(each -> each.isAssignableFrom(part))
            && (index == 1 || index == 5);
        return uploads ? file.getPath() : "x";
    }

    /** A value of a class of the client's, made the way that it offers. */
    private static Object whole(Class<?> type) throws Exception {
        try {
            Constructor<?> constructor = type.getDeclaredConstructor();
            constructor.setAccessible(true);
            Object made = constructor.newInstance();
            for (String needed : List.of("setTenant", "setNamespace", "setName", "setKey")) {
                for (Method method : type.getMethods()) {
                    if (method.getName().equals(needed)) {
                        method.invoke(made, "x");
                    }
                }
            }
            return made;
        } catch (NoSuchMethodException | InstantiationException none) {
            try {
                Object builder = type.getMethod("builder").invoke(null);
                Method build = builder.getClass().getMethod("build");
                build.setAccessible(true);
                return build.invoke(builder);
            } catch (NoSuchMethodException | InvocationTargetException neither) {
                return null;
            }
        }
    }
}
