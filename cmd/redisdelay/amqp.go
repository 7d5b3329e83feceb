package main

import (
	"cmp"
	"crypto/tls"
	"errors"
	"log/slog"
	"strings"

	"github.com/rabbitmq/amqp091-go"
)

// amqpKind is a destination at RabbitMQ or another AMQP 0-9-1 broker. Messages have the form of
// watermill-amqp.
type amqpKind struct {
	settings *settings
	url      *string
	username *string
	password *secret
	vhost    *string
	kind     *choice
	exchange *string
	declares *bool
	tls      *tlsSettings
}

func declareAMQP(s *settings) destinationKind {
	return &amqpKind{
		settings: s,
		url:      s.text("amqp", "", "for --to amqp: `amqp://host:port/vhost`, or `amqps://` for TLS"),
		username: s.text("amqp-username", "", "user of the broker; without it, `guest`"),
		password: s.secret("amqp-password", "the password"),
		vhost:    s.text("amqp-vhost", "", "virtual host, if it is not in the URL"),
		kind: s.choice("amqp-exchange-kind", "queue", "`queue`: each topic is a queue, through the default exchange; or `fanout`, `direct`, `topic`: "+
			"the kind of the exchange to publish to", "queue", "fanout", "direct", "topic"),
		exchange: s.text("amqp-exchange", "", "name of that exchange; the topic is then the routing key. Without it, each topic is an exchange, "+
			"without a routing key"),
		declares: s.yes("amqp-declare", true, "declare the queue or exchange, durable, before first use; false: it must exist"),
		tls:      declareTLS(s, "amqp", "; or use `amqps://`"),
	}
}

func (k *amqpKind) open(batch int, logger *slog.Logger) (*destination, error) {
	dial, err := k.dialer()
	if err != nil {
		return nil, err
	}
	if k.kind.value == "queue" && *k.exchange != "" {
		return nil, refuse("--amqp-exchange is %q, but --amqp-exchange-kind queue uses no exchange", *k.exchange)
	}
	publisher := &amqpPublisher{
		dial:   dial,
		layout: amqpLayout{kind: k.kind.value, exchange: *k.exchange, declares: *k.declares},
		batch:  batch,
		logger: logger,
	}
	return &destination{
		Publisher: publisher,
		permanent: refusedByAMQP,
		check:     publisher.check,
	}, nil
}

// dialer returns a function that connects to the broker.
func (k *amqpKind) dialer() (func() (*amqp091.Connection, error), error) {
	if *k.url == "" {
		return nil, refuse("--amqp is missing: amqp://host:port/vhost")
	}
	u, user, err := readURL(k.settings, "amqp", *k.url, "amqp", "amqps")
	if err != nil {
		return nil, err
	}
	if u.RawQuery != "" {
		return nil, refuse("--amqp has parameters after a question mark; use settings instead")
	}
	if vhost := strings.TrimPrefix(u.Path, "/"); vhost != "" && *k.vhost != "" && vhost != *k.vhost {
		return nil, refuse("the virtual host is %q in --amqp but %q in --amqp-vhost", vhost, *k.vhost)
	}
	user = user.or(*k.username, k.password.value)
	if user.password != "" {
		user.user = cmp.Or(user.user, "guest")
	}
	tlsConfig, err := k.tls.config(u.Scheme == "amqps")
	if err != nil {
		return nil, err
	}
	if tlsConfig != nil {
		u.Scheme = "amqps"
	}
	config := amqp091.Config{
		Vhost:      *k.vhost,
		Dial:       amqp091.DefaultDial(connectTimeout),
		Properties: amqp091.Table{"connection_name": "redisdelay relay"},
	}
	if user != (credentials{}) {
		config.SASL = []amqp091.Authentication{&amqp091.PlainAuth{Username: user.user, Password: user.password}}
	} else if tlsConfig != nil && len(tlsConfig.Certificates) > 0 {
		config.SASL = []amqp091.Authentication{&amqp091.ExternalAuth{}, &amqp091.PlainAuth{Username: "guest", Password: "guest"}}
	}
	return func() (*amqp091.Connection, error) { return dialAMQP(u.String(), config, tlsConfig) }, nil
}

func dialAMQP(url string, config amqp091.Config, tlsConfig *tls.Config) (*amqp091.Connection, error) {
	if tlsConfig != nil {
		config.TLSClientConfig = tlsConfig.Clone() // the client writes into it
	}
	return amqp091.DialConfig(url, config)
}

// refusedByAMQP returns whether the error is about the message itself, so that a retry cannot help.
func refusedByAMQP(err error) bool {
	if errors.Is(err, errUnsendable) {
		return true
	}
	var fault *amqp091.Error
	return errors.As(err, &fault) && (fault.Code == amqp091.ContentTooLarge ||
		fault.Code == amqp091.PreconditionFailed && strings.Contains(fault.Reason, "message size"))
}
