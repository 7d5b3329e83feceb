package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	natsclient "github.com/nats-io/nats.go"

	"github.com/redisdelay/watermill-redisdelay/relay"
)

// natsKind is NATS JetStream by watermill-nats: each topic is a subject.
type natsKind struct {
	settings        *settings
	urls            *list
	username        *string
	password, token *secret
	creds, nkey     *string
	tls             *tlsSettings
	provision       *bool
	drop            *bool
}

func declareNATS(s *settings) destinationKind {
	return &natsKind{
		settings:  s,
		urls:      s.list("nats", "for --to nats: `nats://host:port`, or several; `tls://` for TLS"),
		username:  s.text("nats-username", "", "user of NATS"),
		password:  s.secret("nats-password", "the password"),
		token:     s.secret("nats-token", "a token, instead of user and password"),
		creds:     s.text("nats-creds-file", "", "credentials file (JWT and seed), as nsc writes it"),
		nkey:      s.text("nats-nkey-file", "", "file with the seed of an NKey"),
		tls:       declareTLS(s, "nats", "; `tls://` says it too"),
		provision: s.yes("nats-provision", false, "make a stream for a topic that is in none, named as the topic, with `_` instead of `.`, `/` and `\\`"),
		drop: s.yes("nats-drop-duplicates", true, "give each message its subject and its ID in Redis as `Nats-Msg-Id`, so that the stream drops what comes twice "+
			"within its duplicate window"),
	}
}

func (k *natsKind) open(_ int, logger *slog.Logger) (*destination, error) {
	servers, options, err := k.connection(logger)
	if err != nil {
		return nil, err
	}
	connection, err := natsclient.Connect(servers, options...)
	if err != nil {
		return nil, refuse("--nats: %w", err)
	}
	publisher, err := nats.NewPublisherWithNatsConn(connection, nats.PublisherPublishConfig{
		Marshaler:         natsMarshaler{drop: *k.drop},
		SubjectCalculator: nats.DefaultSubjectCalculator,
	}, watermill.NewSlogLogger(logger))
	if err != nil {
		connection.Close()
		return nil, err
	}
	streams, err := connection.JetStream()
	if err != nil {
		connection.Close()
		return nil, err
	}
	return &destination{
		Publisher: &natsPublisher{Publisher: publisher, streams: streams, provision: *k.provision},
		permanent: refusedByNATS,
		check: func(context.Context) error {
			if connection.IsConnected() {
				return nil
			}
			return errors.Join(errors.New("no connection to NATS"), connection.LastError())
		},
	}, nil
}

// connection is what the client is told.
func (k *natsKind) connection(logger *slog.Logger) (servers string, options []natsclient.Option, err error) {
	user, byURL, servers, err := k.servers()
	if err != nil {
		return "", nil, err
	}
	identity, err := k.identity(user)
	if err != nil {
		return "", nil, err
	}
	tlsConfig, err := k.tls.config(byURL)
	if err != nil {
		return "", nil, err
	}
	var said sync.Map // errors of this connection
	options = []natsclient.Option{
		natsclient.Name("redisdelay relay"),
		natsclient.Timeout(5 * time.Second),
		natsclient.RetryOnFailedConnect(true),
		natsclient.MaxReconnects(-1),
		natsclient.PingInterval(5 * time.Second), // the third without an answer ends a connection that died without a word
		natsclient.IgnoreAuthErrorAbort(),
		natsclient.ReconnectBufSize(-1), // what cannot be sent is an error, not sent later beside its retry
		natsclient.DisconnectErrHandler(func(_ *natsclient.Conn, err error) {
			if err != nil {
				logger.Warn("NATS is gone, connecting again", "error", err)
			}
		}),
		natsclient.ReconnectHandler(func(*natsclient.Conn) {
			said.Clear()
			logger.Info("NATS is there")
		}),
		natsclient.ErrorHandler(func(_ *natsclient.Conn, _ *natsclient.Subscription, err error) { // which comes at every try
			if _, again := said.LoadOrStore(err.Error(), true); !again {
				logger.Warn("NATS refuses something", "error", err)
			}
		}),
	}
	return servers, append(append(options, identity...), secured(tlsConfig)...), nil
}

func secured(config *tls.Config) []natsclient.Option {
	if config == nil {
		return nil
	}
	return []natsclient.Option{natsclient.Secure(config)}
}

// servers reads the URLs. Only one of them can say who the program is.
func (k *natsKind) servers() (user credentials, tls bool, servers string, err error) {
	if len(*k.urls) == 0 {
		return user, false, "", refuse("--nats is missing: nats://host:port")
	}
	var all []string
	for _, text := range *k.urls {
		u, found, err := readURL(k.settings, "nats", text, "nats", "tls")
		if err != nil {
			return user, false, "", err
		}
		if found != (credentials{}) {
			user = found
		}
		tls = tls || u.Scheme == "tls"
		all = append(all, u.String())
	}
	return user, tls, strings.Join(all, ","), nil
}

// identity says who the program is, in one of the ways.
func (k *natsKind) identity(user credentials) ([]natsclient.Option, error) {
	user = user.or(*k.username, k.password.value)
	token := k.token.value
	if user.user != "" && user.password == "" && *k.username == "" { // nats://token@host
		user, token = credentials{}, user.user
	}
	var ways []string
	var options []natsclient.Option
	add := func(way string, option natsclient.Option) {
		ways, options = append(ways, way), append(options, option)
	}
	if user != (credentials{}) {
		add("user and password", natsclient.UserInfo(user.user, user.password))
	}
	if token != "" {
		add("a token", natsclient.Token(token))
	}
	if *k.creds != "" {
		if _, err := readSecret(*k.creds); err != nil {
			return nil, refuse("--nats-creds-file: %w", err)
		}
		add("--nats-creds-file", natsclient.UserCredentials(*k.creds))
	}
	if *k.nkey != "" {
		option, err := natsclient.NkeyOptionFromSeed(*k.nkey)
		if err != nil {
			return nil, refuse("--nats-nkey-file: %s has no seed of an NKey: %w", *k.nkey, err)
		}
		add("--nats-nkey-file", option)
	}
	if len(ways) > 1 {
		return nil, refuse("NATS is told who this is in several ways: %s; leave one", strings.Join(ways, ", "))
	}
	return options, nil
}

// natsPublisher is watermill-nats' own, and looks at the subject first. It makes streams itself, as watermill-nats takes none
// for a topic's but one that is named like it.
type natsPublisher struct {
	*nats.Publisher
	streams   natsclient.JetStreamManager
	provision bool
	there     sync.Map // topics that are in a stream
}

// Publish publishes messages. NATS' client writes whatever the subject is, and the server closes the connection, which
// is that of all topics, when it cannot read it.
func (p *natsPublisher) Publish(topic string, messages ...*message.Message) error {
	if strings.ContainsAny(topic, " \t\r\n") {
		return fmt.Errorf("%w: NATS has no subject %.50q, as it has a blank", errUnsendable, topic)
	}
	if err := p.ensureStream(topic); err != nil {
		return err
	}
	err := p.Publisher.Publish(topic, messages...)
	if err != nil {
		p.there.Delete(topic) // somebody may have deleted the stream
	}
	return err
}

// ensureStream makes a stream for a topic that is in none. One for a topic with a wildcard would have other topics too.
func (p *natsPublisher) ensureStream(topic string) error {
	if _, there := p.there.Load(topic); there || !p.provision || strings.ContainsAny(topic, "*>") {
		return nil
	}
	_, err := p.streams.StreamNameBySubject(topic)
	if errors.Is(err, natsclient.ErrNoMatchingStream) {
		_, err = p.streams.AddStream(&natsclient.StreamConfig{Name: streamName.Replace(topic), Subjects: []string{topic}})
	}
	if err != nil {
		return fmt.Errorf("see to its stream: %w", err)
	}
	p.there.Store(topic, true)
	return nil
}

// streamName replaces what a subject may have, and the name of a stream may not.
var streamName = strings.NewReplacer(".", "_", "/", "_", "\\", "_", "\f", "_")

// natsMarshaler is watermill-nats' own, and adds what JetStream knows a duplicate by. A UUID would not do: two messages
// may have the same.
type natsMarshaler struct {
	nats.NATSMarshaler
	drop bool
}

func (m natsMarshaler) Marshal(topic string, msg *message.Message) (*natsclient.Msg, error) {
	for key := range msg.Metadata {
		if key == nats.WatermillUUIDHdr {
			return nil, errUUIDKey
		}
		if !headerName.MatchString(key) {
			return nil, fmt.Errorf("%w: NATS has no header %.50q, so this metadata key would be lost", errUnsendable, key)
		}
	}
	out, err := m.NATSMarshaler.Marshal(topic, msg)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnsendable, err)
	}
	if id := msg.Metadata.Get(relay.IDKey); m.drop && id != "" && out.Header.Get(natsclient.MsgIdHdr) == "" {
		// A stream may have several subjects, to which relays of several groups publish the same message.
		out.Header.Set(natsclient.MsgIdHdr, topic+" "+id)
	}
	return out, nil
}

// headerName matches what NATS' client does not drop from the headers without a word.
var headerName = regexp.MustCompile("^[0-9A-Za-z!#$%&'*+.^_`|~-]+$")

// JetStream's error codes for messages that are too large.
const (
	streamsMaximum natsclient.ErrorCode = 10054 // as the stream is set up
	headersMaximum natsclient.ErrorCode = 10097 // 64 kB, whatever the stream
)

func refusedByNATS(err error) bool {
	var api *natsclient.APIError
	return errors.Is(err, natsclient.ErrMaxPayload) || errors.Is(err, errUnsendable) ||
		errors.As(err, &api) && (api.ErrorCode == streamsMaximum || api.ErrorCode == headersMaximum)
}
