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

// natsKind is a destination at NATS JetStream, through watermill-nats. Each topic is a subject.
type natsKind struct {
	settings        *settings
	urls            *list
	username        *string
	password, token *secret
	creds, nkey     *string
	tls             *tlsSettings
	provision       *bool
	drop            *bool
	ping            time.Duration // between pings; after three without an answer the connection is lost
}

func declareNATS(s *settings) destinationKind {
	return &natsKind{
		settings:  s,
		ping:      5 * time.Second,
		urls:      s.list("nats", "for --to nats: `nats://host:port`, one or several; `tls://` for TLS"),
		username:  s.text("nats-username", "", "user of NATS"),
		password:  s.secret("nats-password", "the password"),
		token:     s.secret("nats-token", "a token, instead of user and password"),
		creds:     s.text("nats-creds-file", "", "credentials file (JWT and seed), as nsc writes it"),
		nkey:      s.text("nats-nkey-file", "", "file with the seed of an NKey"),
		tls:       declareTLS(s, "nats", "; or use `tls://`"),
		provision: s.yes("nats-provision", false, "create a stream for a topic that is in none, named like the topic, with `_` for `.`, `/` and `\\`"),
		drop: s.yes("nats-drop-duplicates", true, "set `Nats-Msg-Id` to the subject and the message's ID in Redis, so that the stream drops duplicates "+
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

// connection returns the addresses and options of the client.
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
	var logged sync.Map // errors logged since this connection was made
	options = []natsclient.Option{
		natsclient.Name("redisdelay relay"),
		natsclient.Timeout(5 * time.Second),
		natsclient.RetryOnFailedConnect(true),
		natsclient.MaxReconnects(-1),
		natsclient.PingInterval(k.ping),
		natsclient.IgnoreAuthErrorAbort(),
		natsclient.ReconnectBufSize(-1), // without a buffer, an unsent message is an error and not sent again beside its retry
		natsclient.DisconnectErrHandler(func(_ *natsclient.Conn, err error) {
			if err != nil {
				logger.Warn("The connection to NATS is lost, connecting again", "error", err)
			}
		}),
		natsclient.ReconnectHandler(func(*natsclient.Conn) {
			logged.Clear()
			logger.Info("Connected to NATS again")
		}),
		natsclient.ErrorHandler(func(_ *natsclient.Conn, _ *natsclient.Subscription, err error) { // called at every attempt
			if _, again := logged.LoadOrStore(err.Error(), true); !again {
				logger.Warn("NATS reports an error", "error", err)
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

// servers reads the URLs. The credentials of the last URL with credentials are used for all.
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

// identity returns the option for authentication. At most one method may be set.
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
			return nil, refuse("--nats-nkey-file: %s does not have the seed of an NKey: %w", *k.nkey, err)
		}
		add("--nats-nkey-file", option)
	}
	if len(ways) > 1 {
		return nil, refuse("several methods of authentication are set for NATS: %s; leave one", strings.Join(ways, ", "))
	}
	return options, nil
}

// natsPublisher is the Publisher of watermill-nats with a check of the subject. It also creates
// streams, because watermill-nats only recognises a stream that is named like the topic.
type natsPublisher struct {
	*nats.Publisher
	streams   natsclient.JetStreamManager
	provision bool
	there     sync.Map // topics known to be in a stream
}

// Publish publishes messages. It refuses an invalid subject, because the client would send it, and
// the server would close the connection, which all topics share.
func (p *natsPublisher) Publish(topic string, messages ...*message.Message) error {
	if strings.ContainsAny(topic, " \t\r\n") {
		return fmt.Errorf("%w: %.50q is not a NATS subject, because it has a blank", errUnsendable, topic)
	}
	if err := p.ensureStream(topic); err != nil {
		return err
	}
	err := p.Publisher.Publish(topic, messages...)
	if err != nil {
		p.there.Delete(topic) // the stream may have been deleted
	}
	return err
}

// ensureStream creates a stream for a topic that is in none, if configured. It does not for a topic
// with a wildcard, because that stream would contain other topics too.
func (p *natsPublisher) ensureStream(topic string) error {
	if _, there := p.there.Load(topic); there || !p.provision || strings.ContainsAny(topic, "*>") {
		return nil
	}
	_, err := p.streams.StreamNameBySubject(topic)
	if errors.Is(err, natsclient.ErrNoMatchingStream) {
		_, err = p.streams.AddStream(&natsclient.StreamConfig{Name: streamName.Replace(topic), Subjects: []string{topic}})
	}
	if err != nil {
		return fmt.Errorf("find or create the stream: %w", err)
	}
	p.there.Store(topic, true)
	return nil
}

// streamName replaces characters that are valid in a subject but not in the name of a stream.
var streamName = strings.NewReplacer(".", "_", "/", "_", "\\", "_", "\f", "_")

// natsMarshaler is the marshaler of watermill-nats. It adds the ID by which JetStream recognises a
// duplicate. The UUID is not suitable, because two messages may have the same.
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
			return nil, fmt.Errorf("%w: metadata key %.50q is not a valid NATS header and would be lost", errUnsendable, key)
		}
	}
	out, err := m.NATSMarshaler.Marshal(topic, msg)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnsendable, err)
	}
	if id := msg.Metadata.Get(relay.IDKey); m.drop && id != "" && out.Header.Get(natsclient.MsgIdHdr) == "" {
		// The subject is part of the ID, because relays of several groups may publish the same
		// message to several subjects of a stream.
		out.Header.Set(natsclient.MsgIdHdr, topic+" "+id)
	}
	return out, nil
}

// headerName matches the header names that the NATS client does not silently drop.
var headerName = regexp.MustCompile("^[0-9A-Za-z!#$%&'*+.^_`|~-]+$")

// JetStream's error codes for messages that are too large.
const (
	streamsMaximum natsclient.ErrorCode = 10054 // limit set for the stream
	headersMaximum natsclient.ErrorCode = 10097 // 64 kB for every stream
)

// refusedByNATS returns whether the error is about the message itself, so that a retry cannot help.
func refusedByNATS(err error) bool {
	var api *natsclient.APIError
	return errors.Is(err, natsclient.ErrMaxPayload) || errors.Is(err, errUnsendable) ||
		errors.As(err, &api) && (api.ErrorCode == streamsMaximum || api.ErrorCode == headersMaximum)
}
