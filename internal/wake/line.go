package wake

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// line receives what comes on a channel of a Cluster, over a connection to the master of a key. It
// tests that connection by a PING each second. If the node does not answer, or has the key no
// more, the line connects to the key's new master.
type line struct {
	client  *servers.Client
	key     string
	channel string
	sharded string // a sharded channel in the key's slot, which is used where the server has such; or ""
	rule    string // the ACL rule that allows the channels
}

// connected is the event that a line has a new connection, or could not make one.
type connected struct {
	server  string // the node's address
	channel string // the one of the line's channels that is used
	err     error
}

// testEach is how long a connection goes between two tests, and how long a test may take.
const testEach = time.Second

// listen returns the events of the line: connected, and a *redis.Message for each message. They are
// closed when ctx has ended.
func (l *line) listen(ctx context.Context) <-chan any {
	events := make(chan any)
	go func() {
		defer close(events)
		for ctx.Err() == nil {
			node, err := l.client.Node(ctx, l.key)
			if err != nil {
				pause(ctx, connectAgain)
				continue
			}
			switch err := l.stay(ctx, node, events); {
			case err == nil, ctx.Err() != nil: // the key has another master, or nobody listens any more
			case errors.Is(err, refusal.ErrForbidden): // the user may get the permission
				pause(ctx, connectAgain)
			default:
				pause(ctx, connectSoon)
				l.client.AwaitMaster(ctx, node, l.key)
			}
		}
	}()
	return events
}

// connectSoon is the pause after a connection was lost. The client may learn in it which node has
// the key.
const connectSoon = 50 * time.Millisecond

// pause waits, or returns early if ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// stay passes on the events of a connection to a node. It returns nil when the client knows another
// master of the key.
func (l *line) stay(ctx context.Context, node servers.Node, events chan<- any) error {
	ctx, cancel := context.WithCancel(ctx) // its end closes the connection
	defer cancel()
	pubsub, channel, err := l.connect(ctx, node)
	send := func(event any) bool {
		select {
		case events <- event:
			return true
		case <-ctx.Done():
			return false
		}
	}
	if !send(connected{node.Addr(), channel, err}) || err != nil {
		return err
	}
	incoming := make(chan any)
	failed := make(chan error, 1)
	go func() { failed <- l.receive(ctx, pubsub, incoming) }()

	test := time.NewTicker(testEach)
	defer test.Stop()
	for asked := false; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-failed:
			return err
		case event := <-incoming:
			asked = false
			switch event := event.(type) {
			case *redis.Message:
				if !send(event) {
					return ctx.Err()
				}
			case *redis.Subscription:
				if strings.HasSuffix(event.Kind, "unsubscribe") { // a sharded channel's slot has moved
					return errMoved
				}
			}
		case <-test.C:
			if asked {
				return errSilent
			}
			if is, err := l.client.Node(ctx, l.key); err == nil && is.Addr() != node.Addr() {
				return nil
			}
			asked = true
			go func() { // of go-redis, which may be making a connection
				_ = l.client.Call(func(redis.UniversalClient) error { return pubsub.Ping(ctx, testText) })
			}()
		}
	}
}

var (
	errSilent = errors.New("the node does not answer on its Pub/Sub connection")
	errMoved  = errors.New("the slot of the channel has moved")
)

// testText is the text of a PING. go-redis reads no reply over RESP3 that is shorter than 36 bytes.
var testText = strings.Repeat("redisdelay", 5)

// connect subscribes a new connection, to the sharded channel if there is one and the server has
// the command.
func (l *line) connect(ctx context.Context, node servers.Node) (pubsub *redis.PubSub, channel string, err error) {
	channels := []string{l.channel}
	if l.sharded != "" {
		channels = []string{l.sharded, l.channel}
	}
	for _, channel = range channels {
		pubsub, err = subscribe(ctx, node, nil, channel, l.rule)
		if err == nil {
			break
		}
		if pubsub != nil {
			_ = pubsub.Close()
		}
		if !refusal.LacksCommand(err) {
			break
		}
	}
	return pubsub, channel, err
}

// receive passes on what a connection brings, until it fails.
func (l *line) receive(ctx context.Context, pubsub *redis.PubSub, incoming chan<- any) error {
	for {
		event, err := servers.Ask(l.client, func(redis.UniversalClient) (any, error) { return pubsub.Receive(ctx) })
		if server := redis.Error(nil); err != nil && !errors.As(err, &server) { // it may refuse PING, which shows that it lives
			return err
		}
		select {
		case incoming <- event:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
