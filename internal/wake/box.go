package wake

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// box is a Pub/Sub channel of a Mailbox, with one connection. Without a Cluster a Mailbox has one
// box. In a Cluster it has one for each master that has topics of its receivers, on that master,
// because a wake-up over the Cluster's bus comes late. The box follows the slot of the topic for
// which it was made. So its channel stays the same when a replica takes over.
type box struct {
	mailbox *Mailbox
	id      string       // in the names of its channels
	topic   *queue.Topic // for which it was made; nil without a Cluster
	running context.Context
	stop    context.CancelFunc
	asked   chan struct{} // closed when the first SUBSCRIBE was answered, or had no answer in time

	// Guarded by Mailbox.mu:
	channel string
	server  string // the master on which it listens; "" without a Cluster
	users   int    // receivers, calls of Permitted, and without a Cluster the Mailbox
	denied  error  // queue.ErrForbidden while the server's user may not listen, else nil
}

// open returns the box on a server, with one user more. If there is none, it makes one for the
// topic. m.mu is held.
func (m *Mailbox) open(server string, topic *queue.Topic) *box {
	b := m.boxes[server]
	if b == nil {
		b = &box{mailbox: m, id: queue.Token(), topic: topic, server: server, asked: make(chan struct{})}
		b.channel = queue.MailboxChannel(m.prefix, b.id)
		b.running, b.stop = context.WithCancel(m.running)
		m.boxes[server] = b
		if m.client.Cluster() {
			b.channel = queue.ShardedMailbox(m.prefix, b.id, topic.Name)
			m.serving.Go(b.listenToMaster)
		} else {
			m.serving.Go(b.listenToServer)
		}
	}
	b.users++
	return b
}

// leave takes a user from the box, and ends it after the last. m.mu is held.
func (b *box) leave() {
	if b.users--; b.users > 0 {
		return
	}
	b.stop()
	if b.mailbox.boxes[b.server] == b {
		delete(b.mailbox.boxes, b.server)
	}
}

// move notes on which server and channel the box listens. If that server has another box, receivers
// go there with their next claim.
func (b *box) move(server, channel string) {
	m := b.mailbox
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.boxes[b.server] == b {
		delete(m.boxes, b.server)
	}
	if m.boxes[server] == nil && b.users > 0 {
		m.boxes[server] = b
	}
	b.server, b.channel = server, channel
}

// deny keeps a refusal for Permitted.
func (b *box) deny(err error) {
	if !errors.Is(err, queue.ErrForbidden) {
		err = nil
	}
	b.mailbox.mu.Lock()
	defer b.mailbox.mu.Unlock()
	b.denied = err
}

// listenToMaster wakes receivers by what comes from a master of a Cluster, until the box is closed.
func (b *box) listenToMaster() {
	m := b.mailbox
	asked := sync.OnceFunc(func() { close(b.asked) })
	defer asked()
	l := &line{
		client: m.client, key: b.topic.Key(), rule: m.rule,
		channel: queue.MailboxChannel(m.prefix, b.id), sharded: queue.ShardedMailbox(m.prefix, b.id, b.topic.Name),
	}
	for events := l.listen(b.running); ; {
		select {
		case <-b.running.Done(): // the events may end later, while a connection is being made
			return
		case event := <-events:
			switch event := event.(type) {
			case connected:
				b.deny(event.err)
				if event.err == nil {
					b.move(event.server, event.channel)
					m.wakeAll(nil) // messages may have been lost, and addresses may have changed
				}
				asked()
			case *redis.Message:
				m.deliver(event.Payload)
			}
		}
	}
}

// listenToServer wakes receivers by what comes from the only server, until the box is closed.
// go-redis reports each connection that it makes anew.
func (b *box) listenToServer() {
	m := b.mailbox
	pubsub, err := subscribe(b.running, m.client, nil, b.channel, m.rule)
	b.deny(err)
	close(b.asked)
	for errors.Is(err, queue.ErrForbidden) && b.running.Err() == nil {
		select {
		case <-b.running.Done():
		case <-time.After(connectAgain): // the user may get the permission; go-redis asks only once
			pubsub, err = subscribe(b.running, m.client, pubsub, b.channel, m.rule)
			b.deny(err)
		}
	}
	if err == nil {
		m.wakeAll(nil) // receivers may have looked before the connection was there
	}
	listener := newListener(m.client, b.channel, false)
	defer listener.end()
	events := listener.listen(b.running, pubsub)
	for {
		select {
		case <-b.running.Done(): // the events may end later, while a connection is being made
			return
		case event, open := <-events:
			switch event := event.(type) {
			case *redis.Subscription:
				m.wakeAll(nil) // messages may have been lost while there was no connection
			case *redis.Message:
				m.deliver(event.Payload)
			}
			if !open { // the client was closed
				return
			}
		}
	}
}
