package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
)

// connectTimeout limits the time to connect, including the handshake.
const connectTimeout = 5 * time.Second

// errUnrouted means that the broker has no queue for a message.
var errUnrouted = errors.New("the broker has no queue for it")

// amqpPublisher publishes to a broker. It returns nil when the broker has confirmed all messages
// and has routed each to a queue. It connects on first use, and again after it has lost the
// connection. Messages have the form of watermill-amqp. The Publisher of watermill-amqp is not
// used, because it waits for each message separately. It also reports success for a message without
// a queue, which the broker drops.
type amqpPublisher struct {
	dial   func() (*amqp091.Connection, error)
	layout amqpLayout
	batch  int
	logger *slog.Logger

	mu         sync.Mutex
	connection *amqp091.Connection
	dialing    *amqpDial       // the attempt to connect; nil if there is none
	declared   map[string]bool // topics declared on this connection
	idle       []*amqpChannel
	blocked    error // why the broker has blocked this connection; nil if it has not
	closed     bool
}

// Publish publishes messages, and returns when all are confirmed. A refused message closes the
// channel, so that the messages after it fail too.
func (p *amqpPublisher) Publish(topic string, messages ...*message.Message) error {
	for together := range slices.Chunk(messages, p.batch) {
		channel, err := p.channel(together[0].Context(), topic)
		if err != nil {
			return err
		}
		err = channel.publish(p.layout, topic, together)
		if err != nil {
			_ = channel.Close() // confirmations may still arrive on it
			p.forget(topic)     // the queue or exchange may have been deleted
			return err
		}
		p.release(channel)
	}
	return nil
}

// amqpDial is an attempt to connect. Concurrent callers share it. If each made its own and the
// broker did not answer, each would wait for a timeout after the other.
type amqpDial struct {
	ended      chan struct{}
	connection *amqp091.Connection
	err        error
}

// connected returns the connection. It connects if there is none, and waits at most until ctx ends.
func (p *amqpPublisher) connected(ctx context.Context) (*amqp091.Connection, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, errClosed
	}
	if p.connection != nil && !p.connection.IsClosed() {
		defer p.mu.Unlock()
		return p.connection, nil
	}
	if p.dialing == nil {
		p.dialing = &amqpDial{ended: make(chan struct{})}
		go p.connect(p.dialing)
	}
	attempt := p.dialing
	p.mu.Unlock()
	select {
	case <-attempt.ended:
		return attempt.connection, attempt.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// connect makes the attempt. It runs in a separate goroutine, so that neither Close nor a caller
// whose context ends must wait for it.
func (p *amqpPublisher) connect(attempt *amqpDial) {
	defer close(attempt.ended)
	connection, err := p.dial()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dialing = nil
	switch {
	case err != nil:
		attempt.err = fmt.Errorf("connect to the broker: %w", err)
	case p.closed:
		attempt.err = errors.Join(errClosed, connection.CloseDeadline(time.Now().Add(time.Second)))
	default:
		p.logger.Info("Connected to the broker")
		p.connection, p.idle, p.declared, p.blocked = connection, nil, map[string]bool{}, nil
		go p.watchBlocking(connection, connection.NotifyBlocked(make(chan amqp091.Blocking, 1)))
		attempt.connection = connection
	}
}

// watchBlocking records whether the broker blocks the connection, until the connection ends.
// RabbitMQ does so when it is short of memory or disk. It then answers no request.
func (p *amqpPublisher) watchBlocking(connection *amqp091.Connection, notices <-chan amqp091.Blocking) {
	for blocking := range notices {
		var blocked error
		if blocking.Active {
			blocked = fmt.Errorf("the broker blocks publishers: %s", blocking.Reason)
			p.logger.Warn("The broker blocks publishers, waiting", "reason", blocking.Reason)
		} else {
			p.logger.Info("The broker accepts messages again")
		}
		p.mu.Lock()
		if p.connection == connection {
			p.blocked = blocked
		}
		p.mu.Unlock()
	}
}

// check returns an error if the broker cannot be reached or blocks publishers.
func (p *amqpPublisher) check(ctx context.Context) error {
	if _, err := p.connected(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.blocked
}

var errClosed = errors.New("closed")

// channel returns a channel for exclusive use, on which the topic is declared.
func (p *amqpPublisher) channel(ctx context.Context, topic string) (*amqpChannel, error) {
	if err := p.layout.check(topic); err != nil {
		return nil, err
	}
	connection, err := p.connected(ctx)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	var channel *amqpChannel
	if last := len(p.idle) - 1; last >= 0 && p.connection == connection {
		channel, p.idle = p.idle[last], p.idle[:last]
	}
	declared := p.declared[topic]
	p.mu.Unlock()
	if channel == nil || channel.IsClosed() {
		if channel, err = openAMQPChannel(connection, p.batch); err != nil {
			return nil, err
		}
	}
	if declared {
		return channel, nil
	}
	if err := p.layout.declare(channel, topic); err != nil {
		_ = channel.Close()
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.connection == connection {
		p.declared[topic] = true
	}
	return channel, nil
}

// forget makes the next use of a topic declare it again.
func (p *amqpPublisher) forget(topic string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.declared, topic)
}

// release returns a channel for use by others.
func (p *amqpPublisher) release(channel *amqpChannel) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if channel.connection == p.connection && !p.closed {
		p.idle = append(p.idle, channel)
	}
}

// Close closes the connection within a second. It ignores errors, because all published messages
// are confirmed.
func (p *amqpPublisher) Close() error {
	p.mu.Lock()
	connection := p.connection
	p.closed = true
	p.mu.Unlock()
	if connection == nil || connection.IsClosed() {
		return nil
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = connection.CloseDeadline(time.Now().Add(time.Second)) // heartbeats of the broker prolong the deadline
	}()
	select {
	case <-ended:
	case <-time.After(time.Second):
	}
	return nil
}

// amqpLayout maps a topic to an exchange or queue.
type amqpLayout struct {
	kind, exchange string
	declares       bool
}

// to returns the exchange and the routing key.
func (l amqpLayout) to(topic string) (exchange, key string) {
	switch {
	case l.kind == "queue":
		return "", topic
	case l.exchange == "":
		return topic, ""
	default:
		return l.exchange, topic
	}
}

// check refuses topics that are no valid name of a queue or exchange. If a name is not UTF-8,
// RabbitMQ closes the connection, which all topics share. RabbitMQ removes line breaks from names.
// A routing key may be any text.
func (l amqpLayout) check(topic string) error {
	if l.exchange == "" && (!utf8.ValidString(topic) || strings.ContainsAny(topic, "\r\n")) {
		return fmt.Errorf("%w: RabbitMQ does not allow the name %.50q: it is not UTF-8, or has a line break", errUnsendable, topic)
	}
	return checkShort("the topic", topic)
}

func (l amqpLayout) declare(channel *amqpChannel, topic string) (err error) {
	if !l.declares {
		return nil
	}
	exchange, _ := l.to(topic)
	if exchange == "" {
		_, err = channel.QueueDeclare(topic, true, false, false, false, nil)
	} else {
		err = channel.ExchangeDeclare(exchange, l.kind, true, false, false, false, nil)
	}
	if err != nil {
		return fmt.Errorf("declare the queue or exchange: %w", err)
	}
	return nil
}

// amqpChannel is a channel in confirm mode.
type amqpChannel struct {
	*amqp091.Channel
	connection *amqp091.Connection
	largest    int // maximum bytes of all headers of a message
	returned   chan amqp091.Return
	ended      chan *amqp091.Error
}

// openAMQPChannel opens a channel for up to batch messages at once.
func openAMQPChannel(connection *amqp091.Connection, batch int) (*amqpChannel, error) {
	opened, err := connection.Channel()
	if err != nil {
		return nil, fmt.Errorf("open a channel: %w", err)
	}
	channel := &amqpChannel{
		Channel:    opened,
		connection: connection,
		largest:    connection.Config.FrameSize - 1024,
		returned:   opened.NotifyReturn(make(chan amqp091.Return, batch)), // must never be full, because that would block the connection
		ended:      opened.NotifyClose(make(chan *amqp091.Error, 1)),
	}
	if err := opened.Confirm(false); err != nil {
		_ = opened.Close()
		return nil, fmt.Errorf("enable confirmations: %w", err)
	}
	return channel, nil
}

// publish publishes messages and waits for the confirmation of each.
func (c *amqpChannel) publish(layout amqpLayout, topic string, messages []*message.Message) error {
	exchange, key := layout.to(topic)
	var publishings []amqp091.Publishing
	for _, msg := range messages {
		publishing, err := c.marshal(msg)
		if err != nil {
			return err
		}
		publishings = append(publishings, publishing)
	}
	var confirmations []*amqp091.DeferredConfirmation
	for _, publishing := range publishings {
		confirmation, err := c.PublishWithDeferredConfirm(exchange, key, true, false, publishing)
		if err != nil {
			return c.why(err)
		}
		confirmations = append(confirmations, confirmation)
	}
	for i, confirmation := range confirmations {
		taken, err := confirmation.WaitContext(messages[i].Context())
		if err != nil {
			return err
		}
		if !taken {
			return c.why(errors.New("the broker refused the message"))
		}
	}
	select {
	case r, open := <-c.returned: // a return comes before its confirmation
		if !open {
			return nil
		}
		return fmt.Errorf("%w: %s (exchange %q, routing key %q)", errUnrouted, r.ReplyText, exchange, key)
	default:
		return nil
	}
}

// why returns the reason for which the broker closed the channel, or err if it did not.
func (c *amqpChannel) why(err error) error {
	select {
	case fault := <-c.ended:
		if fault != nil {
			return fault
		}
	case <-time.After(100 * time.Millisecond): // the reason arrives after the confirmations end
	}
	return err
}

// marshal returns the message in the form of watermill-amqp. It refuses metadata that the client
// would truncate, or for which the broker would close the channel or the connection.
func (c *amqpChannel) marshal(msg *message.Message) (amqp091.Publishing, error) {
	size := len(msg.UUID)
	for key, value := range msg.Metadata {
		if err := checkShort("a metadata key", key); err != nil {
			return amqp091.Publishing{}, err
		}
		if key == amqp.DefaultMessageUUIDHeaderKey {
			return amqp091.Publishing{}, errUUIDKey
		}
		if key == "CC" || key == "BCC" { // these are case-sensitive
			return amqp091.Publishing{}, fmt.Errorf("%w: RabbitMQ uses metadata key %s for routing keys, and allows no text there", errUnsendable, key)
		}
		size += len(key) + len(value) + 6
	}
	if c.largest > 0 && size > c.largest {
		return amqp091.Publishing{}, fmt.Errorf("%w: its metadata has %d bytes, and the broker allows %d", errUnsendable, size, c.largest)
	}
	return amqp.DefaultMarshaler{}.Marshal(msg)
}

// checkShort checks a text whose length AMQP stores in one byte.
func checkShort(what, text string) error {
	if len(text) > 255 {
		return fmt.Errorf("%w: %s has %d bytes, and AMQP allows 255: %.50q", errUnsendable, what, len(text), text)
	}
	return nil
}
