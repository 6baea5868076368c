// Uses REST the way operators' programs do, through Pulsar's own Go admin client.
//
// Argument: the HTTP URL. Each step prints "ok NAME"; the first that fails ends the program with
// what went wrong and status 1. The last step calls every other method that the client has: each
// must be refused with our reason, and none be taken for something else.
package main

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/rest"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
)

const (
	atOnce    = 5 * time.Second
	namespace = "go/a"
	plain     = "persistent://go/a/plain"
	bundle    = "0x00000000_0xffffffff"
)

// What the steps before the last have asked, or what clients ask of any broker.
var served = []string{
	"Brokers.GetActiveBrokers", "Brokers.GetListActiveBrokers", "Brokers.GetOwnedNamespaces",
	"Brokers.GetRuntimeConfigurations", "Brokers.HealthCheck",
	"Brokers.HealthCheckWithTopicVersion",
	"Clusters.Create", "Clusters.Get", "Clusters.List",
	"Namespaces.CreateNamespace", "Namespaces.CreateNamespaceWithPolicies",
	"Namespaces.CreateNsWithBundlesData", "Namespaces.CreateNsWithNumBundles",
	"Namespaces.CreateNsWithPolices", "Namespaces.GetNamespaces", "Namespaces.GetTopics",
	"Namespaces.GetIsAllowAutoUpdateSchema", "Namespaces.GetSchemaCompatibilityStrategy",
	"Namespaces.GetSchemaValidationEnforced", "Namespaces.SetIsAllowAutoUpdateSchema",
	"Namespaces.GetNamespaceMessageTTL", "Namespaces.SetNamespaceMessageTTL",
	"Namespaces.RemoveNamespaceMessageTTL", "Namespaces.GetPersistence",
	"Namespaces.SetPersistence", "Namespaces.RemovePersistence", "Namespaces.GetRetention",
	"Namespaces.SetRetention", "Namespaces.RemoveRetention",
	"Namespaces.GetSubscriptionExpirationTime", "Namespaces.SetSubscriptionExpirationTime",
	"Namespaces.RemoveSubscriptionExpirationTime", "Namespaces.SplitNamespaceBundle",
	"Namespaces.Unload", "Namespaces.UnloadNamespaceBundle", "Subscriptions.ExpireAllMessages",
	"Subscriptions.ExpireMessages", "Subscriptions.GetMessageByID",
	"Subscriptions.GetMessagesByID", "Subscriptions.PeekMessages", "Topics.GetLastMessageID",
	"Topics.GetMessageID", "Topics.GetDelayedDelivery", "Topics.GetMessageTTL",
	"Topics.GetPersistence", "Topics.GetRetention", "Topics.RemoveDelayedDelivery",
	"Topics.RemoveMessageTTL", "Topics.RemovePersistence", "Topics.RemoveRetention",
	"Topics.SetDelayedDelivery", "Topics.SetMessageTTL", "Topics.SetPersistence",
	"Topics.SetRetention", "Topics.Unload", "Topics.Compact", "Topics.CompactStatus",
	"Namespaces.GetCompactionThreshold", "Namespaces.SetCompactionThreshold",
	"Namespaces.RemoveCompactionThreshold", "Topics.GetCompactionThreshold",
	"Topics.SetCompactionThreshold", "Topics.RemoveCompactionThreshold",
	"Topics.GetSchemaCompatibilityStrategy", "Topics.GetSchemaCompatibilityStrategyApplied",
	"Topics.RemoveSchemaCompatibilityStrategy", "Topics.SetSchemaCompatibilityStrategy",
	"Topics.GetSchemaValidationEnforced", "Topics.RemoveSchemaValidationEnforced",
	"Topics.SetSchemaValidationEnforced", "Namespaces.SetDeduplicationStatus",
	"Topics.GetDeduplicationStatus", "Topics.RemoveDeduplicationStatus",
	"Topics.SetDeduplicationStatus",
	"Namespaces.SetSchemaCompatibilityStrategy", "Namespaces.SetSchemaValidationEnforced",
	"Schemas.CreateSchemaByPayload", "Schemas.CreateSchemaBySchemaInfo", "Schemas.DeleteSchema",
	"Schemas.ForceDeleteSchema", "Schemas.GetAllSchemas", "Schemas.GetSchemaInfo",
	"Schemas.GetSchemaInfoByVersion", "Schemas.GetSchemaInfoWithVersion",
	"Schemas.GetVersionByPayload", "Schemas.GetVersionBySchemaInfo",
	"Schemas.TestCompatibilityWithPostSchemaPayload", "Schemas.TestCompatibilityWithSchemaInfo",
	"Subscriptions.ClearBacklog", "Subscriptions.ResetCursorToMessageID",
	"Subscriptions.ResetCursorToTimestamp", "Subscriptions.Delete", "Subscriptions.ForceDelete", "Subscriptions.List",
	"Namespaces.GetNamespaceReplicationClusters", "Namespaces.SetNamespaceReplicationClusters",
	"Namespaces.DeleteNamespace", "Namespaces.GetPolicies", "Subscriptions.SkipMessages",
	"Namespaces.GetTopicAutoCreation", "Namespaces.SetTopicAutoCreation",
	"Namespaces.RemoveTopicAutoCreation", "Topics.GetAutoSubscriptionCreation",
	"Topics.SetAutoSubscriptionCreation", "Topics.RemoveAutoSubscriptionCreation",
	"Topics.Terminate", "Namespaces.GetBacklogQuotaMap", "Namespaces.SetBacklogQuota",
	"Namespaces.RemoveBacklogQuota", "Topics.GetBacklogQuotaMap", "Topics.SetBacklogQuota",
	"Topics.RemoveBacklogQuota",
	"Tenants.Delete", "Tenants.Create", "Tenants.Get", "Tenants.List", "Tenants.Update",
	"Namespaces.GetNamespacePermissions", "Namespaces.GrantNamespacePermission",
	"Namespaces.RevokeNamespacePermission", "Topics.GetPermissions", "Topics.GrantPermission",
	"Topics.RevokePermission",
	"Topics.Create", "Topics.CreateWithProperties", "Topics.Delete", "Topics.GetInternalStats", "Topics.GetMetadata",
	"Topics.GetPartitionedStats", "Topics.GetPartitionedStatsWithOption", "Topics.GetStats",
	"Topics.GetStatsWithOption", "Topics.List", "Topics.Lookup", "Topics.Update",
}

var ratesAndLimits = regexp.MustCompile(
	`^(Namespaces|Topics)\.(Get|Set|Remove)` +
		`((Dispatch|Publish|Subscribe|SubscriptionDispatch)Rate|Max[A-Za-z]+)$`)

// The client keeps no error of these.
var errorDropped = []string{"BrokerStats.GetLoadReport"}

type peer struct {
	admin pulsaradmin.Client
	file  string
}

func main() {
	admin, err := pulsaradmin.NewClient(&pulsaradmin.Config{WebServiceURL: os.Args[1]})
	must(err)
	file, err := os.CreateTemp("", "function*.jar")
	must(err)
	defer os.Remove(file.Name())
	p := &peer{admin: admin, file: file.Name()}
	for _, step := range []struct {
		name string
		run  func()
	}{
		{"clusters", p.clusters},
		{"tenants", p.tenants},
		{"namespaces", p.namespaces},
		{"permissions", p.permissions},
		{"topics", p.topics},
		{"partitioned topics", p.partitionedTopics},
		{"subscriptions", p.subscriptions},
		{"schemas", p.schemas},
		{"policies of schemas", p.schemaPolicies},
		{"policies of namespaces", p.namespacePolicies},
		{"policies of topics", p.topicPolicies},
		{"brokers", p.brokers},
		{"everything else is refused", p.everythingElse},
	} {
		step.run()
		fmt.Println("ok " + step.name)
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func check(true_ bool, what string, arguments ...any) {
	if !true_ {
		panic(fmt.Sprintf(what, arguments...))
	}
}

func refused(code int, words string, run func() error) {
	begun := time.Now()
	err := run()
	check(err != nil, "not refused: %s", words)
	check(time.Since(begun) < atOnce, "refused after %s: %s", time.Since(begun), err)
	var refusal rest.Error
	check(errors.As(err, &refusal), "of another kind: %v", err)
	check(refusal.Code == code, "%d, not %d: %s", refusal.Code, code, refusal.Reason)
	check(strings.Contains(refusal.Reason, words), "'%s' in: %s", words, refusal.Reason)
}

func topic(name string) utils.TopicName {
	found, err := utils.GetTopicName(name)
	must(err)
	return *found
}

func (p *peer) clusters() {
	found, err := p.admin.Clusters().List()
	must(err)
	check(slices.Equal(found, []string{"standalone"}), "clusters: %v", found)
	about, err := p.admin.Clusters().Get("standalone")
	must(err)
	check(strings.HasPrefix(about.BrokerServiceURL, "pulsar://"), "its URL: %v", about)
	refused(404, "knows no other", func() error {
		_, err := p.admin.Clusters().Get("other")
		return err
	})
	must(p.admin.Brokers().HealthCheck())
}

func (p *peer) tenants() {
	tenant := utils.TenantData{Name: "go", AllowedClusters: []string{"standalone"}}
	must(p.admin.Tenants().Create(tenant))
	found, err := p.admin.Tenants().Get("go")
	must(err)
	check(slices.Equal(found.AllowedClusters, []string{"standalone"}), "its clusters: %v", found)
	refused(409, "exists already", func() error { return p.admin.Tenants().Create(tenant) })
	tenant = utils.TenantData{Name: "roles", AdminRoles: []string{"root"}}
	must(p.admin.Tenants().Create(tenant))
	tenant.AdminRoles = []string{"other", "root"}
	must(p.admin.Tenants().Update(tenant))
	found, err = p.admin.Tenants().Get("roles")
	must(err)
	slices.Sort(found.AdminRoles)
	check(slices.Equal(found.AdminRoles, tenant.AdminRoles), "its admins: %v", found)
}

func (p *peer) namespaces() {
	must(p.admin.Namespaces().CreateNamespace(namespace))
	must(p.admin.Namespaces().CreateNsWithNumBundles("go/bundles", 4))
	found, err := p.admin.Namespaces().GetNamespaces("go")
	must(err)
	slices.Sort(found)
	check(slices.Equal(found, []string{namespace, "go/bundles"}), "namespaces: %v", found)
	refused(409, "exists already", func() error {
		return p.admin.Namespaces().CreateNamespace(namespace)
	})
	refused(404, "does not exist", func() error {
		return p.admin.Namespaces().CreateNamespace("absent/a")
	})
	shown, err := p.admin.Namespaces().GetPolicies(namespace)
	must(err)
	check(slices.Equal(shown.ReplicationClusters, []string{"standalone"}), "shown: %v", shown)
	check(shown.Bundles.NumBundles == 4 && shown.RetentionPolicies == nil, "shown: %v", shown)
	p.deletions()
}

func (p *peer) deletions() {
	must(p.admin.Tenants().Create(utils.TenantData{Name: "gone"}))
	must(p.admin.Namespaces().CreateNamespace("gone/a"))
	must(p.admin.Topics().Create(topic("persistent://gone/a/t"), 2))
	refused(409, "has 2 topics", func() error {
		return p.admin.Namespaces().DeleteNamespace("gone/a")
	})
	refused(409, "has 1 namespaces (a)", func() error { return p.admin.Tenants().Delete("gone") })
	must(p.admin.Topics().Delete(topic("persistent://gone/a/t"), true, false))
	must(p.admin.Namespaces().DeleteNamespace("gone/a"))
	refused(404, "gone/a does not exist", func() error {
		return p.admin.Namespaces().DeleteNamespace("gone/a")
	})
	must(p.admin.Tenants().Delete("gone"))
	refused(404, "does not exist", func() error { return p.admin.Tenants().Delete("gone") })
}

func (p *peer) permissions() {
	space, err := utils.GetNamespaceName(namespace)
	must(err)
	both := []utils.AuthAction{"consume", "produce"}
	must(p.admin.Namespaces().GrantNamespacePermission(*space, "app", both))
	found, err := p.admin.Namespaces().GetNamespacePermissions(*space)
	must(err)
	slices.Sort(found["app"])
	check(len(found) == 1 && slices.Equal(found["app"], both), "of the namespace: %v", found)
	must(p.admin.Namespaces().RevokeNamespacePermission(*space, "app"))
	found, err = p.admin.Namespaces().GetNamespacePermissions(*space)
	must(err)
	check(len(found) == 0, "of the namespace then: %v", found)
	name := topic("persistent://go/a/permitted")
	must(p.admin.Topics().Create(name, 0))
	must(p.admin.Topics().GrantPermission(name, "writer", both[1:]))
	found, err = p.admin.Topics().GetPermissions(name)
	must(err)
	check(len(found) == 1 && slices.Equal(found["writer"], both[1:]), "of the topic: %v", found)
	must(p.admin.Topics().RevokePermission(name, "writer"))
	must(p.admin.Topics().Delete(name, false, true))
}

func (p *peer) listed() ([]string, []string) {
	name, err := utils.GetNamespaceName(namespace)
	must(err)
	partitioned, others, err := p.admin.Topics().List(*name)
	must(err)
	return partitioned, others
}

func (p *peer) topics() {
	must(p.admin.Topics().Create(topic(plain), 0))
	partitioned, others := p.listed()
	check(len(partitioned) == 0 && slices.Equal(others, []string{plain}), "topics: %v", others)
	stats, err := p.admin.Topics().GetStats(topic(plain))
	must(err)
	check(stats.StorageSize == 0, "bytes stored: %d", stats.StorageSize)
	found, err := p.admin.Topics().Lookup(topic(plain))
	must(err)
	check(strings.HasPrefix(found.BrokerURL, "pulsar://"), "where it is served: %v", found)
	_, err = p.admin.Topics().GetInternalStats(topic(plain))
	must(err)
	refused(409, "exists already", func() error {
		return p.admin.Topics().Create(topic(plain), 0)
	})
	refused(404, "", func() error {
		_, err := p.admin.Topics().GetStats(topic(plain + "-absent"))
		return err
	})
	ended := topic("persistent://go/a/ended")
	must(p.admin.Topics().Create(ended, 0))
	last, err := p.admin.Topics().Terminate(ended)
	must(err)
	check(last.EntryID == -1, "the last message of none: %v", last)
	must(p.admin.Topics().Delete(ended, false, true))
	for _, name := range []string{"n ü", "a%20b", "a&b=c?d", "stats"} {
		other := topic("persistent://go/a/" + name)
		must(p.admin.Topics().Create(other, 0))
		_, others := p.listed()
		check(slices.Contains(others, other.String()), "'%s' in %v", other.String(), others)
		must(p.admin.Topics().Delete(other, false, true))
	}
}

func (p *peer) partitionedTopics() {
	parts := topic("persistent://go/a/parts")
	must(p.admin.Topics().Create(parts, 3))
	must(p.admin.Topics().Update(parts, 5))
	metadata, err := p.admin.Topics().GetMetadata(parts)
	must(err)
	check(metadata.Partitions == 5, "partitions: %d", metadata.Partitions)
	partitioned, _ := p.listed()
	check(slices.Equal(partitioned, []string{parts.String()}), "their list: %v", partitioned)
	stats, err := p.admin.Topics().GetPartitionedStats(parts, true)
	must(err)
	check(len(stats.Partitions) == 5, "their stats: %v", stats.Partitions)
	refused(409, "exists already", func() error { return p.admin.Topics().Create(parts, 3) })
	must(p.admin.Topics().Delete(parts, false, false))
	partitioned, _ = p.listed()
	check(len(partitioned) == 0, "none is left: %v", partitioned)
}

func (p *peer) subscriptions() {
	found, err := p.admin.Subscriptions().List(topic(plain))
	must(err)
	check(len(found) == 0, "subscriptions: %v", found)
	refused(404, "has no subscription", func() error {
		return p.admin.Subscriptions().Delete(topic(plain), "s")
	})
	refused(404, "has no subscription", func() error {
		_, err := p.admin.Subscriptions().PeekMessages(topic(plain), "s", 1)
		return err
	})
	refused(404, "has no entry 3:4", func() error {
		_, err := p.admin.Subscriptions().GetMessagesByID(topic(plain), 3, 4)
		return err
	})
	last, err := p.admin.Topics().GetLastMessageID(topic(plain))
	must(err)
	check(last.EntryID == -1, "the last message of an empty topic: %v", last)
	_, err = p.admin.Topics().GetMessageID(topic(plain), 1)
	must(err)
	refused(404, "has no subscription", func() error {
		return p.admin.Subscriptions().SkipMessages(topic(plain), "s", 1)
	})
	refused(404, "has no subscription", func() error {
		return p.admin.Subscriptions().ResetCursorToTimestamp(topic(plain), "s", 1)
	})
	must(p.admin.Subscriptions().Create(topic(plain), "moved", utils.Earliest))
	must(p.admin.Subscriptions().SkipMessages(topic(plain), "moved", 1))
	must(p.admin.Subscriptions().ResetCursorToTimestamp(topic(plain), "moved", 1))
	must(p.admin.Subscriptions().ResetCursorToMessageID(topic(plain), "moved", utils.Latest))
	must(p.admin.Subscriptions().ClearBacklog(topic(plain), "moved"))
	must(p.admin.Subscriptions().Delete(topic(plain), "moved"))
	refused(404, "has no subscription", func() error {
		return p.admin.Subscriptions().ExpireMessages(topic(plain), "s", 1)
	})
}

func payload(fields string) utils.PostSchemaPayload {
	return utils.PostSchemaPayload{
		SchemaType: "AVRO", Schema: `{"type":"record","name":"R","fields":[` + fields + `]}`,
		Properties: map[string]string{"owner": "peer"},
	}
}

func (p *peer) schemas() {
	one, wrong := payload(`{"name":"a","type":"int"}`), payload(`{"name":"a","type":"string"}`)
	two := payload(`{"name":"a","type":"int"},{"name":"b","type":"int","default":0}`)
	schemas := p.admin.Schemas()
	refused(404, "has no schema", func() error {
		_, err := schemas.GetSchemaInfo(plain)
		return err
	})
	must(schemas.CreateSchemaByPayload(plain, one))
	must(schemas.CreateSchemaByPayload(plain, two))
	newest, err := schemas.GetSchemaInfoWithVersion(plain)
	must(err)
	check(newest.Version == 1 && string(newest.SchemaInfo.Schema) == two.Schema, "%v", newest)
	oldest, err := schemas.GetSchemaInfoByVersion(plain, 0)
	must(err)
	check(oldest.Properties["owner"] == "peer", "the first: %v", oldest)
	all, err := schemas.GetAllSchemas(plain)
	must(err)
	check(len(all) == 2, "versions: %v", all)
	version, err := schemas.GetVersionByPayload(plain, one)
	must(err)
	check(version == 0, "version %d", version)
	fits, err := schemas.TestCompatibilityWithPostSchemaPayload(plain, wrong)
	must(err)
	check(!fits.IsCompatibility && fits.SchemaCompatibilityStrategy == "FULL", "%v", fits)
	refused(409, "R.a", func() error { return schemas.CreateSchemaByPayload(plain, wrong) })
	must(schemas.DeleteSchema(plain))
	refused(404, "has no schema", func() error { return schemas.ForceDeleteSchema(plain) })
}

func (p *peer) schemaPolicies() {
	name, err := utils.GetNamespaceName(namespace)
	must(err)
	namespaces := p.admin.Namespaces()
	must(namespaces.SetSchemaCompatibilityStrategy(*name, utils.SchemaCompatibilityStrategyBackward))
	strategy, err := namespaces.GetSchemaCompatibilityStrategy(*name)
	must(err)
	check(strategy == utils.SchemaCompatibilityStrategyBackward, "strategy %s", strategy)
	must(namespaces.SetSchemaValidationEnforced(*name, true))
	enforced, err := namespaces.GetSchemaValidationEnforced(*name)
	must(err)
	check(enforced, "enforced")
	must(namespaces.SetIsAllowAutoUpdateSchema(*name, false))
	allowed, err := namespaces.GetIsAllowAutoUpdateSchema(*name)
	must(err)
	check(!allowed, "not allowed")
}

func (p *peer) namespacePolicies() {
	namespaces := p.admin.Namespaces()
	must(namespaces.SetDeduplicationStatus(namespace, true))
	must(namespaces.SetDeduplicationStatus(namespace, false))
	must(namespaces.SetNamespaceMessageTTL(namespace, 30))
	ttl, err := namespaces.GetNamespaceMessageTTL(namespace)
	must(err)
	check(ttl == 30, "time to live: %d", ttl)
	must(namespaces.RemoveNamespaceMessageTTL(namespace))
	must(namespaces.SetRetention(namespace, utils.NewRetentionPolicies(60, -1)))
	retention, err := namespaces.GetRetention(namespace)
	must(err)
	check(*retention == utils.NewRetentionPolicies(60, -1), "retention: %v", retention)
	must(namespaces.RemoveRetention(namespace))
	must(namespaces.SetPersistence(namespace, utils.NewPersistencePolicies(3, 2, 2, 0.5)))
	persistence, err := namespaces.GetPersistence(namespace)
	must(err)
	check(*persistence == utils.NewPersistencePolicies(3, 2, 2, 0.5), "quorums: %v", persistence)
	must(namespaces.RemovePersistence(namespace))
	refused(412, "bookkeeperEnsemble: 0 cannot be used", func() error {
		return namespaces.SetPersistence(namespace, utils.PersistencePolicies{})
	})
	name, err := utils.GetNamespaceName(namespace)
	must(err)
	three := 3
	must(namespaces.SetTopicAutoCreation(*name, utils.TopicAutoCreationConfig{
		Allow: true, Type: utils.Partitioned, Partitions: &three,
	}))
	creation, err := namespaces.GetTopicAutoCreation(*name)
	must(err)
	check(creation.Allow && *creation.Partitions == 3, "automatic topics: %v", creation)
	must(namespaces.RemoveTopicAutoCreation(*name))
	must(namespaces.SetSubscriptionExpirationTime(*name, 90))
	minutes, err := namespaces.GetSubscriptionExpirationTime(*name)
	must(err)
	check(minutes == 90, "expiration: %d", minutes)
	must(namespaces.RemoveSubscriptionExpirationTime(*name))
}

func (p *peer) topicPolicies() {
	topics := p.admin.Topics()
	must(topics.SetDeduplicationStatus(topic(plain), true))
	once, err := topics.GetDeduplicationStatus(topic(plain))
	must(err)
	check(once, "what is sent again is not stored again")
	must(topics.RemoveDeduplicationStatus(topic(plain)))
	must(topics.SetMessageTTL(topic(plain), 30))
	ttl, err := topics.GetMessageTTL(topic(plain))
	must(err)
	check(ttl == 30, "time to live: %d", ttl)
	must(topics.RemoveMessageTTL(topic(plain)))
	must(topics.SetRetention(topic(plain), utils.NewRetentionPolicies(60, -1)))
	retention, err := topics.GetRetention(topic(plain), false)
	must(err)
	check(*retention == utils.NewRetentionPolicies(60, -1), "retention: %v", retention)
	must(topics.RemoveRetention(topic(plain)))
	must(topics.SetSchemaCompatibilityStrategy(topic(plain), utils.SchemaCompatibilityStrategyFull))
	strategy, err := topics.GetSchemaCompatibilityStrategyApplied(topic(plain), true)
	must(err)
	check(strategy == utils.SchemaCompatibilityStrategyFull, "strategy %s", strategy)
	must(topics.RemoveSchemaCompatibilityStrategy(topic(plain)))
	must(topics.SetSchemaValidationEnforced(topic(plain), true))
	enforced, err := topics.GetSchemaValidationEnforced(topic(plain))
	must(err)
	check(enforced, "enforced")
	must(topics.RemoveSchemaValidationEnforced(topic(plain)))
	p.backlogQuotas()
	space, err := utils.GetNameSpaceName("go", "a")
	must(err)
	must(p.admin.Namespaces().SetMaxProducersPerTopic(*space, 9))
	producers, err := p.admin.Namespaces().GetMaxProducersPerTopic(*space)
	must(err)
	check(producers == 9, "producers: %d", producers)
	must(p.admin.Namespaces().RemoveMaxProducersPerTopic(*space))
	must(topics.SetPublishRate(topic(plain), utils.PublishRateData{PublishThrottlingRateInMsg: 100}))
	must(topics.RemovePublishRate(topic(plain)))
	must(topics.Compact(topic(plain)))
	status, err := topics.CompactStatus(topic(plain))
	must(err)
	check(status.Status == utils.SUCCESS || status.Status == utils.RUNNING, "compaction: %v", status)
	must(topics.Unload(topic(plain)))
	must(p.admin.Namespaces().UnloadNamespaceBundle(namespace, "0x00000000_0x40000000"))
	must(p.admin.Namespaces().Unload(namespace))
	refused(404, "has no bundle", func() error {
		return p.admin.Namespaces().UnloadNamespaceBundle(namespace, "0x00000000_0xffffffff")
	})
	must(p.admin.Namespaces().SplitNamespaceBundle(namespace, "0x00000000_0x40000000", false))
	must(p.admin.Subscriptions().ExpireAllMessages(topic(plain), 60))
}

func (p *peer) backlogQuotas() {
	topics, namespaces := p.admin.Topics(), p.admin.Namespaces()
	size := utils.NewBacklogQuota(10240, -1, utils.ProducerException)
	age := utils.NewBacklogQuota(-1, 60, utils.ConsumerBacklogEviction)
	must(namespaces.SetBacklogQuota(namespace, size, utils.DestinationStorage))
	said, err := namespaces.GetBacklogQuotaMap(namespace)
	must(err)
	check(len(said) == 1 && said[utils.DestinationStorage] == size, "of the namespace: %v", said)
	must(topics.SetBacklogQuota(topic(plain), age, utils.MessageAge))
	said, err = topics.GetBacklogQuotaMap(topic(plain), false)
	must(err)
	check(len(said) == 1 && said[utils.MessageAge] == age, "of the topic: %v", said)
	said, err = topics.GetBacklogQuotaMap(topic(plain), true)
	must(err)
	check(said[utils.MessageAge] == age && said[utils.DestinationStorage] == size, "%v", said)
	refused(412, "needs a retention of more", func() error {
		return topics.SetRetention(topic(plain), utils.NewRetentionPolicies(1, -1))
	})
	must(topics.RemoveBacklogQuota(topic(plain), utils.MessageAge))
	must(namespaces.RemoveBacklogQuota(namespace))
	said, err = namespaces.GetBacklogQuotaMap(namespace)
	must(err)
	check(len(said) == 0, "removed: %v", said)
}

func (p *peer) brokers() {
	found, err := p.admin.Brokers().GetListActiveBrokers()
	must(err)
	check(len(found) == 1, "brokers: %v", found)
	clusters, err := p.admin.Clusters().List()
	must(err)
	same, err := p.admin.Brokers().GetActiveBrokers(clusters[0])
	must(err)
	check(slices.Equal(found, same), "brokers of the cluster: %v", same)
	refused(404, "it knows no other", func() error {
		_, err := p.admin.Brokers().GetActiveBrokers("another")
		return err
	})
	_, err = p.admin.Brokers().GetOwnedNamespaces(clusters[0], found[0])
	must(err)
	settings, err := p.admin.Brokers().GetRuntimeConfigurations()
	must(err)
	check(settings["clusterName"] == clusters[0], "its name: %v", settings)
}

func (p *peer) everythingElse() {
	var wrong []string
	count := 0
	client := reflect.ValueOf(p.admin)
	parts := reflect.TypeFor[pulsaradmin.Client]()
	for index := range parts.NumMethod() {
		getter := parts.Method(index)
		part := client.MethodByName(getter.Name).Call(nil)[0]
		kind := getter.Type.Out(0)
		for at := range kind.NumMethod() {
			method := kind.Method(at)
			name := getter.Name + "." + method.Name
			if slices.Contains(served, name) || slices.Contains(errorDropped, name) ||
				ratesAndLimits.MatchString(name) || strings.HasSuffix(method.Name, "WithContext") {
				continue
			}
			if found := p.outcome(name, part.MethodByName(method.Name)); found != "" {
				wrong = append(wrong, name+": "+found)
			}
			count++
		}
	}
	check(len(wrong) == 0, "%s", strings.Join(wrong, "\n"))
	check(count > 150, "the client has more methods than %d", count)
	_, others := p.listed()
	check(slices.Equal(others, []string{plain}), "nothing was made or deleted: %v", others)
}

// Empty if the call is refused as not served, else what came of it.
func (p *peer) outcome(name string, method reflect.Value) string {
	var arguments []reflect.Value
	for index := range method.Type().NumIn() {
		if method.Type().IsVariadic() && index == method.Type().NumIn()-1 {
			break
		}
		arguments = append(arguments, p.argument(name, method.Type().In(index), index))
	}
	results := method.Call(arguments)
	err, failed := results[len(results)-1].Interface().(error)
	if !failed {
		return fmt.Sprintf("done: %v", results)
	}
	var refusal rest.Error
	if !errors.As(err, &refusal) {
		return "of another kind: " + err.Error()
	}
	if refusal.Code != 501 && refusal.Code != 412 || !strings.Contains(refusal.Reason, "not served") {
		return err.Error()
	}
	return ""
}

// Something that a program would say at this place.
func (p *peer) argument(name string, kind reflect.Type, index int) reflect.Value {
	switch kind {
	case reflect.TypeFor[utils.TopicName]():
		return reflect.ValueOf(topic(plain))
	case reflect.TypeFor[utils.NameSpaceName]():
		found, err := utils.GetNamespaceName(namespace)
		must(err)
		return reflect.ValueOf(*found)
	}
	switch kind.Kind() {
	case reflect.String:
		return reflect.ValueOf(p.text(name, index)).Convert(kind)
	case reflect.Int, reflect.Int64, reflect.Int32:
		return reflect.ValueOf(1).Convert(kind)
	case reflect.Pointer:
		return reflect.New(kind.Elem())
	case reflect.Struct:
		made := reflect.New(kind).Elem()
		if field := made.FieldByName("Name"); field.IsValid() && field.Kind() == reflect.String {
			field.SetString("x")
		}
		return made
	}
	return reflect.Zero(kind)
}

func (p *peer) text(name string, index int) string {
	part, method, _ := strings.Cut(name, ".")
	switch {
	case part == "Packages":
		if strings.Contains(method, "List") && index == 1 {
			return namespace
		} else if method == "List" {
			return "function"
		} else if index == 0 {
			return "function://go/a/name@v1"
		}
		return p.file
	case part == "Namespaces" || part == "ResourceQuotas":
		if index == 0 {
			return namespace
		} else if strings.Contains(method, "undle") || part == "ResourceQuotas" {
			return bundle
		}
	case part == "Schemas" && index == 0:
		return plain
	case part == "Functions" || part == "Sinks" || part == "Sources":
		if index == 1 {
			return p.file
		}
	}
	return "x"
}
