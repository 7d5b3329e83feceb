package wake

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
)

// box is a Pub/Sub channel of a Mailbox, with one connection. Without a Cluster a Mailbox has one
// box, from its beginning to its end. In a Cluster it has one for each master that has topics of
// its receivers, on that master, because a wake-up over the Cluster's bus comes late.
//
// In a Cluster a box is made for a topic, and follows that topic's slot. So it has the same channel
// after a replica has taken over. If the slot moves alone, the box goes with it. Receivers of other
// topics then open another box with their next claim or look.
type box struct {
	mailbox *Mailbox
	id      string       // random, in the names of its channels
	topic   *queue.Topic // whose slot it follows, in a Cluster
	running context.Context
	stop    context.CancelFunc
	asked   chan struct{} // closed when the first SUBSCRIBE was answered, or had no answer in time

	// Guarded by Mailbox.mu:
	channel string // in a Cluster a sharded one, until a server turns out to have none
	server  string // the address of the master on which it listens; servers.OnlyServer without a Cluster
	users   int    // receivers, calls of Permitted, and without a Cluster the Mailbox; the box ends with the last
	kept    bool   // one of the users is a call of Permitted that has ended; the next open takes its place
	denied  error  // refusal.ErrForbidden while the server's user may not listen, else nil
}

// open returns the box on a server, with one user more. If there is none, it makes one, which
// follows the topic. The caller holds m.mu.
func (m *Mailbox) open(server string, topic *queue.Topic) *box {
	b := m.boxes[server]
	if b == nil {
		b = &box{mailbox: m, id: queue.Token(), topic: topic, server: server, asked: make(chan struct{})}
		b.channel = queue.MailboxChannel(m.prefix, b.id)
		b.running, b.stop = context.WithCancel(m.running)
		m.boxes[server] = b
		if m.client.Cluster() {
			b.channel = queue.ShardedMailbox(m.prefix, b.id, topic.Name)
		}
		m.serving.Go(b.listen)
	}
	if b.kept {
		b.kept = false
	} else {
		b.users++
	}
	return b
}

// keep is leave, but the box does not end after its last user. It waits for the next one. The
// caller holds Mailbox.mu.
func (b *box) keep() {
	if b.users > 1 || b.mailbox.boxes[b.server] != b { // nobody finds a box that is in no map
		b.leave()
	} else {
		b.kept = true
	}
}

// leave takes a user from the box, and ends it after the last. The caller holds Mailbox.mu.
func (b *box) leave() {
	if b.users--; b.users > 0 {
		return
	}
	b.stop()
	if b.mailbox.boxes[b.server] == b {
		delete(b.mailbox.boxes, b.server)
	}
}

// move notes on which server and channel the box listens. If another box is on that server already,
// both stay. Receivers go over to the other one with their next claim or look.
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
	if b.kept && m.boxes[server] != b { // no receiver finds it any more
		b.kept = false
		b.leave()
	}
}

// wakeReceivers wakes the receivers whose last address named the box: their messages may have been
// lost, or the address may have changed.
func (b *box) wakeReceivers() { b.tell(Anew) }

// tell wakes the receivers whose last address named the box.
func (b *box) tell(argument string) {
	b.mailbox.mu.Lock()
	var its []*Receiver
	for _, r := range b.mailbox.receivers {
		if r.box == b {
			its = append(its, r)
		}
	}
	b.mailbox.mu.Unlock()
	for _, r := range its {
		r.wake(argument, nil)
	}
}

// deny notes for Permitted whether the last SUBSCRIBE was refused.
func (b *box) deny(err error) {
	if !errors.Is(err, refusal.ErrForbidden) {
		err = nil
	}
	b.mailbox.mu.Lock()
	defer b.mailbox.mu.Unlock()
	b.denied = err
}

// deafAfter is how long a box is without a connection when its receivers are told.
const deafAfter = 300 * time.Millisecond

// listen wakes receivers by what comes on the box's channel, until the box ends. In a Cluster that
// is from the master of the box's topic.
func (b *box) listen() {
	m := b.mailbox
	asked := sync.OnceFunc(func() { close(b.asked) })
	defer asked()
	l := &line{
		client: m.client, rule: m.rule, channel: queue.MailboxChannel(m.prefix, b.id),
		busy: func() bool { return m.holding.Load() > 0 },
	}
	if m.client.Cluster() {
		l.key, l.sharded = b.topic.Key(), queue.ShardedMailbox(m.prefix, b.id, b.topic.Name)
	}
	deaf := time.NewTimer(deafAfter)
	deaf.Stop()
	defer deaf.Stop()
	for events, hears := l.listen(b.running), false; ; {
		select {
		case <-b.running.Done(): // the events may end later, while a connection is being made
			return
		case <-deaf.C:
			hears = false
			b.wakeReceivers()
		case event := <-events:
			switch event := event.(type) {
			case connected:
				b.deny(event.err)
				if event.err == nil {
					hears = true
					deaf.Stop()
					if m.client.Cluster() {
						b.move(event.server, event.channel)
					}
					b.wakeReceivers()
				}
				asked()
			case cut:
				if hears {
					deaf.Reset(deafAfter)
				}
			case doubted:
				b.tell(Sign)
			case *redis.Message:
				m.deliver(event.Payload)
			}
		}
	}
}
