package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	natsserver "github.com/nats-io/nats-server/v2/server"
	natsclient "github.com/nats-io/nats.go"
)

// natsServer is a NATS server with JetStream inside this process.
type natsServer struct {
	server *natsserver.Server
	dir    string
}

func startNATS() (*natsServer, error) {
	dir, err := os.MkdirTemp("", "delayed-nats-")
	if err != nil {
		return nil, err
	}
	server, err := natsserver.NewServer(&natsserver.Options{
		Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true,
	})
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	server.Start()
	n := &natsServer{server, dir}
	if !server.ReadyForConnections(10 * time.Second) {
		n.stop()
		return nil, errors.New("NATS does not start")
	}
	fmt.Println("NATS: embedded in this process.")
	return n, nil
}

func (n *natsServer) stop() {
	n.server.Shutdown()
	n.server.WaitForShutdown()
	_ = os.RemoveAll(n.dir)
}

// publisher returns a Publisher that waits for JetStream's ack. It fails at once if it cannot send,
// because the relay retries.
func (n *natsServer) publisher(log watermill.LoggerAdapter) (*nats.Publisher, error) {
	return nats.NewPublisher(nats.PublisherConfig{
		URL:         n.server.ClientURL(),
		NatsOptions: []natsclient.Option{natsclient.MaxReconnects(-1), natsclient.ReconnectBufSize(-1)},
		JetStream: nats.JetStreamConfig{
			AutoProvision: true,
			TrackMsgId:    true, // JetStream drops duplicates within two minutes
		},
	}, log)
}

func (n *natsServer) subscriber(log watermill.LoggerAdapter) (*nats.Subscriber, error) {
	return nats.NewSubscriber(nats.SubscriberConfig{
		URL:         n.server.ClientURL(),
		NatsOptions: []natsclient.Option{natsclient.MaxReconnects(-1)},
		JetStream:   nats.JetStreamConfig{AutoProvision: true, DurablePrefix: "customer"},
	}, log)
}

// tooLarge returns whether the error is permanent, so that a retry cannot help.
func tooLarge(err error) bool { return errors.Is(err, natsclient.ErrMaxPayload) }
