package brokers

import (
	"net"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	natsserver "github.com/nats-io/nats-server/v2/server"
	natsclient "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

var jetstreamBroker = broker{
	start: func(t *testing.T) server {
		s := &natsServer{options: &natsserver.Options{
			Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true,
		}}
		s.up(t)
		s.options.Port = s.port()
		t.Cleanup(s.down)
		return s
	},
	newPublisher: func(addr string) (message.Publisher, error) {
		return nats.NewPublisher(nats.PublisherConfig{
			URL: addr,
			// Publishing without a connection is an error. Nothing is sent later.
			NatsOptions: append(forEver, natsclient.ReconnectBufSize(-1)),
			JetStream: nats.JetStreamConfig{
				AutoProvision: true,
				// Duplicates are counted here, so the server is not asked to drop them.
				TrackMsgId: false,
			},
		}, nil)
	},
	newSubscriber: func(addr string) (message.Subscriber, error) {
		return nats.NewSubscriber(nats.SubscriberConfig{
			URL:         addr,
			NatsOptions: forEver,
			JetStream: nats.JetStreamConfig{
				AutoProvision: true,
				DurablePrefix: "consumers",
				SubscribeOptions: []natsclient.SubOpt{
					natsclient.AckExplicit(), natsclient.AckWait(5 * time.Second), natsclient.MaxAckPending(inConsumersHands),
				},
			},
		}, nil)
	},
}

var forEver = []natsclient.Option{natsclient.MaxReconnects(-1), natsclient.ReconnectWait(50 * time.Millisecond)}

// natsServer is a NATS server in this process.
type natsServer struct {
	options *natsserver.Options
	running *natsserver.Server
}

func (s *natsServer) up(t *testing.T) {
	t.Helper()
	var err error
	s.running, err = natsserver.NewServer(s.options)
	require.NoError(t, err)
	s.running.Start()
	require.True(t, s.running.ReadyForConnections(patience))
}

func (s *natsServer) down() {
	s.running.Shutdown()
	s.running.WaitForShutdown()
}

func (s *natsServer) port() int    { return s.running.Addr().(*net.TCPAddr).Port }
func (s *natsServer) addr() string { return s.running.ClientURL() }

func (s *natsServer) restart(t *testing.T) {
	t.Helper()
	s.down()
	s.up(t)
}
