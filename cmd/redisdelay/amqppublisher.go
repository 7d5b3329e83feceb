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

// connectTimeout is for a connection to be there, with all that is said at its beginning.
const connectTimeout = 5 * time.Second

// errUnrouted is wrapped by the error for messages that no queue took.
var errUnrouted = errors.New("no queue is there for it")

// amqpPublisher publishes to a broker, and returns nil when the broker has confirmed all messages, and a queue was
// there for each. It connects when it is first used, and again when it has lost the connection. Messages are those of
// watermill-amqp; its own Publisher waits for each message by itself, and takes one that no queue is there for as
// published, although the broker has dropped it.
type amqpPublisher struct {
	dial   func() (*amqp091.Connection, error)
	layout amqpLayout
	batch  int
	logger *slog.Logger

	mu         sync.Mutex
	connection *amqp091.Connection
	dialing    *amqpDial       // nil: nobody connects
	declared   map[string]bool // topics, on this connection
	idle       []*amqpChannel
	blocked    error // why the broker reads nothing on this connection
	closed     bool
}

// Publish publishes messages, and returns when all are confirmed. What is refused closes the channel, so that those
// behind it fail too.
func (p *amqpPublisher) Publish(topic string, messages ...*message.Message) error {
	for together := range slices.Chunk(messages, p.batch) {
		channel, err := p.channel(together[0].Context(), topic)
		if err != nil {
			return err
		}
		err = channel.publish(p.layout, topic, together)
		if err != nil {
			_ = channel.Close() // there may be confirmations to come
			p.forget(topic)     // somebody may have deleted what was declared
			return err
		}
		p.release(channel)
	}
	return nil
}

// amqpDial is an attempt to connect. Whoever comes meanwhile waits for its end, and makes none of its own: where a
// broker does not answer, that would take each of them as long again.
type amqpDial struct {
	ended      chan struct{}
	connection *amqp091.Connection
	err        error
}

// connected connects unless it is, and waits for that until ctx ends at most.
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

// connect makes the attempt. Close does not wait for it, nor does who has no time.
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
		p.logger.Info("The broker is there")
		p.connection, p.idle, p.declared, p.blocked = connection, nil, map[string]bool{}, nil
		go p.heedBlocking(connection, connection.NotifyBlocked(make(chan amqp091.Blocking, 1)))
		attempt.connection = connection
	}
}

// heedBlocking notes that the broker reads nothing, as RabbitMQ does while it is short of memory or disk, until the connection
// ends. Whatever is asked then has no answer.
func (p *amqpPublisher) heedBlocking(connection *amqp091.Connection, told <-chan amqp091.Blocking) {
	for blocking := range told {
		var blocked error
		if blocking.Active {
			blocked = fmt.Errorf("the broker takes nothing: %s", blocking.Reason)
			p.logger.Warn("The broker takes nothing, waiting for it", "reason", blocking.Reason)
		} else {
			p.logger.Info("The broker takes messages")
		}
		p.mu.Lock()
		if p.connection == connection {
			p.blocked = blocked
		}
		p.mu.Unlock()
	}
}

// check tells whether the broker is there, and takes messages.
func (p *amqpPublisher) check(ctx context.Context) error {
	if _, err := p.connected(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.blocked
}

var errClosed = errors.New("closed")

// channel returns one that is nobody else's, with all declared that the topic needs.
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

// forget has a topic declared again.
func (p *amqpPublisher) forget(topic string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.declared, topic)
}

// release lets others use the channel.
func (p *amqpPublisher) release(channel *amqpChannel) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if channel.connection == p.connection && !p.closed {
		p.idle = append(p.idle, channel)
	}
}

// Close closes the connection, in a second at most. How the broker takes it does not matter: what was published is confirmed.
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
		_ = connection.CloseDeadline(time.Now().Add(time.Second)) // which the broker's heartbeats put off
	}()
	select {
	case <-ended:
	case <-time.After(time.Second):
	}
	return nil
}

// amqpLayout says where the messages of a topic go.
type amqpLayout struct {
	kind, exchange string
	declares       bool
}

// to is the exchange and the routing key.
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

// check is for what no queue or exchange can be called: for a name that is no UTF-8 RabbitMQ ends the connection, which is
// that of all topics, and out of others it takes line breaks. A routing key may be anything.
func (l amqpLayout) check(topic string) error {
	if l.exchange == "" && (!utf8.ValidString(topic) || strings.ContainsAny(topic, "\r\n")) {
		return fmt.Errorf("%w: nothing can be called %.50q at RabbitMQ: the topic is no UTF-8, or has a line break", errUnsendable, topic)
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
		return fmt.Errorf("declare it: %w", err)
	}
	return nil
}

// amqpChannel is a channel in confirm mode.
type amqpChannel struct {
	*amqp091.Channel
	connection *amqp091.Connection
	largest    int // bytes that all headers of a message may have
	returned   chan amqp091.Return
	ended      chan *amqp091.Error
}

// openAMQPChannel opens one for so many messages at once.
func openAMQPChannel(connection *amqp091.Connection, batch int) (*amqpChannel, error) {
	opened, err := connection.Channel()
	if err != nil {
		return nil, fmt.Errorf("open a channel: %w", err)
	}
	channel := &amqpChannel{
		Channel:    opened,
		connection: connection,
		largest:    connection.Config.FrameSize - 1024,
		returned:   opened.NotifyReturn(make(chan amqp091.Return, batch)), // never full, or the connection would stand still
		ended:      opened.NotifyClose(make(chan *amqp091.Error, 1)),
	}
	if err := opened.Confirm(false); err != nil {
		_ = opened.Close()
		return nil, fmt.Errorf("have deliveries confirmed: %w", err)
	}
	return channel, nil
}

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
			return c.why(errors.New("the broker did not take it"))
		}
	}
	select {
	case r, open := <-c.returned: // which came before the confirmation
		if !open {
			return nil
		}
		return fmt.Errorf("%w: %s (exchange %q, routing key %q)", errUnrouted, r.ReplyText, exchange, key)
	default:
		return nil
	}
}

// why is what the broker said when it closed the channel or, if it did not, err.
func (c *amqpChannel) why(err error) error {
	select {
	case fault := <-c.ended:
		if fault != nil {
			return fault
		}
	case <-time.After(100 * time.Millisecond): // it ends the confirmations first
	}
	return err
}

// marshal checks what the client would cut off, or what would have the broker end the channel or the connection.
func (c *amqpChannel) marshal(msg *message.Message) (amqp091.Publishing, error) {
	size := len(msg.UUID)
	for key, value := range msg.Metadata {
		if err := checkShort("a metadata key", key); err != nil {
			return amqp091.Publishing{}, err
		}
		if key == amqp.DefaultMessageUUIDHeaderKey {
			return amqp091.Publishing{}, errUUIDKey
		}
		if key == "CC" || key == "BCC" { // and neither "cc" nor "Bcc"
			return amqp091.Publishing{}, fmt.Errorf("%w: metadata key %s is for routing keys at RabbitMQ, which takes no text there", errUnsendable, key)
		}
		size += len(key) + len(value) + 6
	}
	if c.largest > 0 && size > c.largest {
		return amqp091.Publishing{}, fmt.Errorf("%w: its metadata has %d bytes, and the broker takes %d", errUnsendable, size, c.largest)
	}
	return amqp.DefaultMarshaler{}.Marshal(msg)
}

// checkShort is for what AMQP has only one byte to tell the length of.
func checkShort(what, text string) error {
	if len(text) > 255 {
		return fmt.Errorf("%w: %s has %d bytes, and AMQP takes 255: %.50q", errUnsendable, what, len(text), text)
	}
	return nil
}
