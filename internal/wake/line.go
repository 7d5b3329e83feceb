package wake

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// line receives what comes on a channel, over a connection to the master of a key. It tests that
// connection by a PING each second, to a single server only while the process has messages in hand,
// and else as often as it counts. If the node does not answer, or has the key no more, the line
// connects to the key's new master.
//
// A client of one server may reach another one after a failover, while the old connection stays
// open and still brings every message, from the replica that the old master is now. The new master
// does not count it, and scripts take the process for gone. So there the line also publishes an
// empty text now and then, over another connection of the client, and counts who heard it.
type line struct {
	client  *servers.Client
	key     string
	channel string
	sharded string        // a sharded channel in the key's slot, which is used where the server has such; or ""
	rule    string        // the ACL rule that allows the channels
	busy    func() bool   // whether a cut has to be noticed at once; nil: it has
	counts  time.Duration // to a single server: between two counts of who hears; 0: countEach

	counting sync.WaitGroup // counts under way
}

// connected is the event that a line has a new connection, or could not make one.
type connected struct {
	server  string // the node's address
	channel string // the one of the line's channels that is used
	err     error
}

// The events that a line has lost its connection, and that a connection does not answer as fast as
// it did.
type (
	cut     struct{}
	doubted struct{}
)

const (
	// testEach is how long a connection goes between two tests, and how long a test may take.
	testEach = time.Second

	// doubtAfter is how long the first test takes until the connection is doubted. The server may
	// have closed it without the process being told, by a proxy. With testEach it is less than the
	// time after which others take the process for gone.
	doubtAfter = 300 * time.Millisecond

	// mostDoubt is the most that doubtAfter becomes on a slow server.
	mostDoubt = 400 * time.Millisecond

	// countEach is how long the line to a single server goes until it counts who hears.
	countEach = 15 * time.Second
)

// listen returns the events of the line: connected, cut, doubted, and a *redis.Message for each
// message. They are closed when ctx has ended.
func (l *line) listen(ctx context.Context) <-chan any {
	events := make(chan any)
	go func() {
		defer close(events)
		defer l.endCounting()
		for failures := 0; ctx.Err() == nil; failures++ {
			node, err := l.client.Node(ctx, l.key)
			if err != nil {
				pause(ctx, connectAgain)
				continue
			}
			stayed, err := l.stay(ctx, node, events)
			if stayed {
				failures = 0
				send(ctx, events, cut{})
			}
			switch {
			case err == nil, ctx.Err() != nil: // the key has another master, or nobody listens any more
			case errors.Is(err, refusal.ErrForbidden): // the user may get the permission
				pause(ctx, connectAgain)
			case l.client.Cluster():
				pause(ctx, connectSoon)
				l.client.AwaitMaster(ctx, node, l.key)
			default:
				pause(ctx, min(connectSoon<<min(failures, 10), connectAgain))
			}
		}
	}()
	return events
}

// endCounting waits a second at most for a count that is under way. go-redis does not heed the
// context while it waits for an answer, so the count may still run.
func (l *line) endCounting() {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.counting.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(time.Second):
	}
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

// stay passes on the events of a connection to a node. It returns whether there was one, and a nil
// error when the client knows another master of the key.
func (l *line) stay(ctx context.Context, node servers.Node, events chan<- any) (stayed bool, err error) {
	ctx, cancel := context.WithCancel(ctx) // its end closes the connection
	defer cancel()
	pubsub, channel, err := l.connect(ctx, node)
	if !send(ctx, events, connected{node.Addr(), channel, err}) || err != nil {
		return false, err
	}
	incoming := make(chan any)
	failed := make(chan error, 1)
	go func() { failed <- l.receive(ctx, pubsub, incoming) }()

	test, doubt := time.NewTicker(testEach), time.NewTimer(0)
	defer test.Stop()
	defer doubt.Stop()
	<-doubt.C
	counted := make(chan error, 1)
	counting, lastCount := false, time.Now()
	patience, sent := doubtAfter, time.Time{} // how long a test may take without a doubt; when the last was sent
	for asked := false; ; {
		select {
		case <-ctx.Done():
			return true, ctx.Err()
		case err := <-failed:
			return true, err
		case err := <-counted:
			counting, lastCount = false, time.Now()
			if err == errNobodyHears {
				return true, err
			}
		case <-doubt.C:
			if asked && !send(ctx, events, doubted{}) {
				return true, ctx.Err()
			}
		case event := <-incoming:
			if asked { // a slow server is no reason to doubt each test
				asked, patience = false, max(doubtAfter, min(2*time.Since(sent), mostDoubt))
			}
			switch event := event.(type) {
			case *redis.Message:
				if !send(ctx, events, event) {
					return true, ctx.Err()
				}
			case *redis.Subscription:
				if strings.HasSuffix(event.Kind, "unsubscribe") { // a sharded channel's slot has moved
					return true, errMoved
				}
			}
		case <-test.C:
			if asked {
				return true, errSilent
			}
			if is, err := l.client.Node(ctx, l.key); err == nil && is.Addr() != node.Addr() {
				return true, nil
			}
			counts := !l.client.Cluster() && !counting && time.Since(lastCount) > cmp.Or(l.counts, countEach)
			if counts {
				counting = true
				l.counting.Go(func() { counted <- l.count(ctx, channel) })
			}
			if !counts && !l.client.Cluster() && l.busy != nil && !l.busy() {
				continue
			}
			asked, sent = true, time.Now()
			doubt.Reset(patience)
			go func() { // of go-redis, which may be making a connection
				_ = l.client.Call(func(redis.UniversalClient) error { return pubsub.Ping(ctx, testText) })
			}()
		}
	}
}

// send returns false if the context ends before the event is taken.
func send(ctx context.Context, events chan<- any, event any) bool {
	select {
	case events <- event:
		return true
	case <-ctx.Done():
		return false
	}
}

// count publishes an empty text. It returns errNobodyHears if the server has no receiver.
func (l *line) count(ctx context.Context, channel string) error {
	heard, err := publish(ctx, l.client, channel)
	if err == nil && heard == 0 {
		err = errNobodyHears
	}
	return err
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
