package queue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// healthCheck is how often a Pub/Sub connection is tested.
const healthCheck = 15 * time.Second

// hearing is a Pub/Sub connection that is seen to work. One whose server has vanished, or is frozen, stays open and brings
// nothing; and one to a server that is a replica now brings all that comes, but the primary counts nobody who hears it, and takes
// him for gone. go-redis writes a PING, and does not wait for the answer. So who listens publishes an empty text to the channel
// now and then, by the client's other connections, and connects anew if it does not come. It does not matter what else comes:
// to a replica, all that is published on the primary. Where the channel is shared nobody is counted, and all that comes will do.
// A Cluster brings what is published on any node to all, so any that answers will do, for the test and for the connection.
type hearing struct {
	client  *Client
	channel string
	shared  bool          // others listen to the channel, too
	every   time.Duration // the connection is tested
	answer  time.Duration // within which what was published has to come
	testing chan struct{} // has one while a test is under way

	answered redis.UniversalClient // published the last test: the client, or in a Cluster the one of a node
}

func newHearing(client *Client, channel string, shared bool) *hearing {
	return &hearing{client, channel, shared, healthCheck, answerWithin, make(chan struct{}, 1), client}
}

// pause is how long until the next test. Those who share a channel hear each other's tests, and wait anew: the first tests for
// all. If all paused alike, each would test at the same instant, and hear the tests of all.
func (h *hearing) pause() time.Duration {
	if h.shared {
		return h.every + rand.N(h.every)
	}
	return h.every
}

// listen passes on what comes, first over a connection that is subscribed already: messages, and a *redis.Subscription whenever
// some may have been lost. It closes what it returns, and the connection, when the context ends or the client is closed.
//
// A connection that is made anew goes where the test was published. In a Cluster the client's own would go to the node that
// has the channel's slot, for as long as that is away, too.
func (h *hearing) listen(ctx context.Context, pubsub *redis.PubSub) <-chan any {
	events := make(chan any)
	go func() {
		defer close(events)
		madeAnew := false
		for {
			anew := h.pass(ctx, received(pubsub), events)
			_ = pubsub.Close() // nothing is left to lose
			switch {
			case anew:
				pubsub = h.answered.Subscribe(ctx, h.channel)
			case madeAnew && ctx.Err() == nil: // the node has left the Cluster; or the client is closed, and so is its next
				pubsub = h.client.Subscribe(ctx, h.channel)
			default:
				return
			}
			madeAnew = anew
		}
	}()
	return events
}

// received is what comes over a connection.
func received(pubsub *redis.PubSub) <-chan any {
	return pubsub.ChannelWithSubscriptions(redis.WithChannelHealthCheckInterval(0))
}

// pass passes on what comes over a connection, until it is to be made anew, or there is an end: then it returns false.
func (h *hearing) pass(ctx context.Context, incoming <-chan any, events chan<- any) (anew bool) {
	timer := time.NewTimer(h.pause())
	defer timer.Stop()
	tested := make(chan error, 1)
	testing, heard := false, false // whether a test is under way, and whether anything has come since it began
	awaited := false               // what was published
	for {
		select {
		case <-ctx.Done():
			return false
		case event, open := <-incoming:
			if !open {
				return false
			}
			heard = true
			if awaited || h.shared {
				awaited = false
				timer.Reset(h.pause())
			}
			select {
			case events <- event:
			case <-ctx.Done():
				return false
			}
		case <-timer.C:
			if awaited {
				return true
			}
			if !testing {
				testing, heard = true, false
				go func() { tested <- h.test(ctx) }()
			}
		case err := <-tested:
			testing = false
			switch {
			case err == errNobodyHears:
				return true
			case err == nil && !heard: // it may come before it is known that it was published
				awaited = true
				timer.Reset(h.answer)
			default: // all is well, or nobody can say; go-redis notices a connection that is closed
				timer.Reset(h.pause())
			}
		}
	}
}

// test publishes to the channel.
func (h *hearing) test(ctx context.Context) error {
	select {
	case h.testing <- struct{}{}:
		defer func() { <-h.testing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if !h.client.Cluster() {
		heard, err := h.client.Publish(ctx, h.channel, "").Result()
		if err == nil && heard == 0 {
			err = errNobodyHears
		}
		return err
	}
	var err error
	for range publishTries {
		if err = h.testByAnyNode(ctx); err == nil || ctx.Err() != nil {
			break
		}
	}
	return err
}

// publishTries is to how many nodes of a Cluster a test is published, one after the other, until one answers.
const publishTries = 5

// testByAnyNode publishes to the channel by a node of a Cluster, the owner of some slot: what is published on one node comes to all,
// and each counts its own receivers only. The same node each time might be the one that is away.
func (h *hearing) testByAnyNode(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin) // to connect
	defer cancel()
	node, err := h.client.Node(ctx, strconv.Itoa(rand.Int()))
	if err != nil {
		return err
	}
	if err := node.Publish(ctx, h.channel, "").Err(); err != nil {
		return err
	}
	h.answered = node
	return nil
}

// end waits for a test that is under way, since the client heeds no context while it waits for an answer; for a second at
// most. None begins after that. The context has ended.
func (h *hearing) end() {
	select {
	case h.testing <- struct{}{}:
	case <-time.After(time.Second):
	}
}

// errNobodyHears means that the server that takes calls knows of nobody on the channel.
var errNobodyHears = errors.New("nobody hears")

// subscribe subscribes to a channel, before anything is received. It returns the refusal, which go-redis would hide. After
// all other errors go-redis tries again by itself, when its Channel is there.
func subscribe(ctx context.Context, pubsub *redis.PubSub, channel string) error {
	err := pubsub.Subscribe(ctx, channel)
	if err == nil {
		_, err = pubsub.ReceiveTimeout(ctx, answerWithin)
	}
	return forbiddenTo(fmt.Sprintf("listen to channel %q", channel), "subscribe, and the channel", err)
}

// answerWithin is how long the answer to a SUBSCRIBE is waited for, which may come later, too; and what is published to test a
// connection.
const answerWithin = 3 * time.Second
