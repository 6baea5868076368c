// Pulsar's Go clients where brokers ask who they are: tokens, TLS, certificates, permissions.
//
// Arguments: the service URL, the same by TLS, REST by TLS, the trusted certificate, a certificate of
// role alice and its key, tokens of an admin, of alice, and of a role without permissions, and a file
// whose token expires soon and is written again all the time. Prints "ok" and the name of each step.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
	"github.com/sirupsen/logrus"
)

const (
	wait   = 30 * time.Second
	expiry = 6 * time.Second
)

type peer struct {
	url, tlsURL, httpsURL, trust, certificate, key, admin, alice, nobody, expiring string
}

func main() {
	a := os.Args[1:]
	p := &peer{a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9]}
	for _, step := range []struct {
		name string
		run  func()
	}{
		{"permissions", p.permissions},
		{"a token", p.token},
		{"a token by TLS", p.tls},
		{"a certificate", p.byCertificate},
		{"what is refused", p.refusals},
		{"a token that expires", p.expires},
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

func check(holds bool, words string, values ...any) {
	if !holds {
		panic(fmt.Sprintf(words, values...))
	}
}

func (p *peer) client(url string, authentication pulsar.Authentication) pulsar.Client {
	logger := logrus.New()
	logger.SetLevel(logrus.PanicLevel)
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: url, Authentication: authentication, TLSTrustCertsFilePath: p.trust,
		OperationTimeout: wait, Logger: log.NewLoggerWithLogrus(logger),
	})
	must(err)
	return client
}

func (p *peer) permissions() {
	admin, err := pulsaradmin.NewClient(&pulsaradmin.Config{
		WebServiceURL: p.httpsURL, Token: p.admin, TLSTrustCertsFilePath: p.trust,
	})
	must(err)
	name, err := utils.GetNamespaceName("public/default")
	must(err)
	may := []utils.AuthAction{"produce", "consume"}
	must(admin.Namespaces().GrantNamespacePermission(*name, "alice", may))
	found, err := admin.Namespaces().GetNamespacePermissions(*name)
	must(err)
	check(len(found["alice"]) == 2, "what was granted: %v", found)
	must(admin.Namespaces().GrantNamespacePermission(*name, "leaver", may))
	must(admin.Namespaces().RevokeNamespacePermission(*name, "leaver"))
	found, err = admin.Namespaces().GetNamespacePermissions(*name)
	must(err)
	check(len(found["leaver"]) == 0, "what was taken back: %v", found)
	other, err := pulsaradmin.NewClient(&pulsaradmin.Config{
		WebServiceURL: p.httpsURL, Token: p.alice, TLSTrustCertsFilePath: p.trust,
	})
	must(err)
	err = other.Namespaces().GrantNamespacePermission(*name, "bob", may)
	check(err != nil && strings.Contains(err.Error(), "administer"), "alice is no admin: %v", err)
}

func (p *peer) roundTrip(client pulsar.Client, topic string, between func()) {
	defer client.Close()
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "s"})
	must(err)
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
	must(err)
	between()
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	_, err = producer.Send(ctx, &pulsar.ProducerMessage{Payload: []byte("hello")})
	must(err)
	message, err := consumer.Receive(ctx)
	must(err)
	check(string(message.Payload()) == "hello", "what was sent")
}

func nothing() {}

func (p *peer) token() {
	p.roundTrip(p.client(p.url, pulsar.NewAuthenticationToken(p.alice)), "go-token", nothing)
}

func (p *peer) tls() {
	p.roundTrip(p.client(p.tlsURL, pulsar.NewAuthenticationToken(p.alice)), "go-tls", nothing)
}

func (p *peer) byCertificate() {
	shown := pulsar.NewAuthenticationTLS(p.certificate, p.key)
	p.roundTrip(p.client(p.tlsURL, shown), "go-certificate", nothing)
}

func (p *peer) refusals() {
	for _, each := range []struct {
		authentication pulsar.Authentication
		words          string
	}{
		{pulsar.NewAuthenticationToken(p.nobody), "AuthorizationError"},
		{pulsar.NewAuthenticationToken("none"), "AuthenticationError"},
		{nil, "AuthenticationError"},
	} {
		client := p.client(p.url, each.authentication)
		_, err := client.CreateProducer(pulsar.ProducerOptions{Topic: "go-refused"})
		check(err != nil && strings.Contains(err.Error(), each.words), "%s: %v", each.words, err)
		client.Close()
	}
}

func (p *peer) expires() {
	client := p.client(p.url, pulsar.NewAuthenticationTokenFromFile(p.expiring))
	p.roundTrip(client, "go-expiring", func() { time.Sleep(expiry) })
}
