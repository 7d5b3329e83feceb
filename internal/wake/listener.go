package wake

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// healthCheck is how long a Pub/Sub connection goes between two tests, at least.
const healthCheck = 15 * time.Second

// listener receives what comes on a channel that others listen to, too. It tests its connection,
// and replaces a connection that fails the test.
//
// A connection to a server that vanished or is frozen stays open and brings nothing. go-redis sends
// a PING, but does not wait for the answer. So the listener publishes an empty text to the channel
// over another connection of the client, and waits for that text. Any message passes for it.
type listener struct {
	client  *servers.Client
	channel string
	every   time.Duration // between two tests
	answer  time.Duration // after a test, for its text to come
	testing chan struct{} // holds one element while a test is under way
}

func newListener(client *servers.Client, channel string) *listener {
	return &listener{client, channel, healthCheck, answerWithin, make(chan struct{}, 1)}
}

// pause returns how long to wait until the next test. A listener receives the tests of others, and
// waits anew after each, so that one tests for all. The pauses are random: with equal pauses all
// would test at once.
func (l *listener) pause() time.Duration { return l.every + rand.N(l.every) }

// listen returns the events of the channel, at first those of a connection that is subscribed
// already. If pubsub is nil, it makes one. An event is a message, or a *redis.Subscription whenever
// messages may have been lost. The events and the connection are closed when the context ends, or
// the client is closed.
func (l *listener) listen(ctx context.Context, pubsub *redis.PubSub) <-chan any {
	events := make(chan any)
	go func() {
		defer close(events)
		if pubsub == nil {
			pubsub = l.connect(ctx)
		}
		for pubsub != nil {
			incoming := pubsub.ChannelWithSubscriptions(redis.WithChannelHealthCheckInterval(0))
			anew := l.pass(ctx, incoming, events)
			_ = pubsub.Close() // nothing is left to lose
			drop(incoming)
			if !anew {
				return
			}
			pubsub = l.connect(ctx)
		}
	}()
	return events
}

// drop empties the channel of a closed connection. Otherwise the goroutine of go-redis that fills
// the channel would wait for a minute, if the channel is full.
func drop(incoming <-chan any) {
	for range len(incoming) {
		<-incoming
	}
}

// connect returns a new connection. It tries again while the client's own code gives none, and
// returns nil when the context ends.
func (l *listener) connect(ctx context.Context) *redis.PubSub {
	for {
		pubsub, err := l.client.Subscribe(ctx, l.channel)
		if err == nil {
			return pubsub
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(connectAgain):
		}
	}
}

// connectAgain is the pause after a connection could not be made.
const connectAgain = time.Second

// pass passes on the events of a connection. It returns true when a new connection is needed, and
// false at the end of the context or of the connection.
func (l *listener) pass(ctx context.Context, incoming <-chan any, events chan<- any) (anew bool) {
	timer := time.NewTimer(l.pause())
	defer timer.Stop()
	tested := make(chan error, 1)
	testing, heard := false, false // a test is under way; an event has come since it began
	awaited := false               // the test was published, and its text has not come yet
	for {
		select {
		case <-ctx.Done():
			return false
		case event, open := <-incoming:
			if !open {
				return false
			}
			heard, awaited = true, false
			timer.Reset(l.pause())
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
				go func() { tested <- l.test(ctx) }()
			}
		case err := <-tested:
			testing = false
			switch {
			case err == errNobodyHears:
				return true
			case err == nil && !heard: // the text may come before the answer to its PUBLISH
				awaited = true
				timer.Reset(l.answer)
			default: // the text has come, or no server answered, and go-redis connects again
				timer.Reset(l.pause())
			}
		}
	}
}

// test publishes an empty text to the channel. It returns errNobodyHears if the server has no
// receiver there.
func (l *listener) test(ctx context.Context) error {
	select {
	case l.testing <- struct{}{}:
		defer func() { <-l.testing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	heard, err := publish(ctx, l.client, l.channel)
	if err == nil && heard == 0 {
		err = errNobodyHears
	}
	return err
}

// publish publishes an empty text, and returns the number of receivers.
func publish(ctx context.Context, client servers.Redis, channel string) (heard int64, err error) {
	return servers.Ask(client, func(c redis.UniversalClient) (int64, error) { return c.Publish(ctx, channel, "").Result() })
}

// end waits a second at most for a test that is under way, and no test begins after it. It is
// called after the context has ended. go-redis does not heed the context while it waits for an
// answer, so the test may still run.
func (l *listener) end() {
	select {
	case l.testing <- struct{}{}:
	case <-time.After(time.Second):
	}
}

// errNobodyHears means that the server that answers calls has no receiver on the channel.
var errNobodyHears = errors.New("nobody hears")

// subscribe subscribes a connection to a channel, which takes the ACL rule. It makes a connection
// if pubsub is nil. The end of ctx closes it. subscribe returns an error that wraps
// refusal.ErrForbidden if the server refuses, which go-redis would hide. After other errors
// go-redis tries again by itself, once its Channel is read. It returns nil and an error if the
// client's own code gives no connection.
func subscribe(ctx context.Context, from servers.Redis, pubsub *redis.PubSub, channel, rule string) (*redis.PubSub, error) {
	if pubsub == nil {
		made, err := from.Subscribe(ctx)
		if err != nil {
			return nil, err
		}
		pubsub = made
		context.AfterFunc(ctx, func() { _ = made.Close() }) // to wait for no answer
	}
	command, send := "subscribe", pubsub.Subscribe
	if servers.Sharded(channel) {
		command, send = "ssubscribe", pubsub.SSubscribe
	}
	returned := false
	err := from.Call(func(redis.UniversalClient) error {
		err := send(ctx, channel)
		if err == nil {
			_, err = pubsub.ReceiveTimeout(ctx, answerWithin)
		}
		returned = true
		return err
	})
	if !returned { // go-redis may not know of the channel
		_ = pubsub.Close()
		return nil, err
	}
	return pubsub, refusal.To("listen to a channel", command, err, rule)
}

// answerWithin is how long a listener waits for the answer to SUBSCRIBE, and for the text of a
// test. The answer may still come later.
const answerWithin = 3 * time.Second
