package servers

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/guard"
)

const (
	slowAfter = 500 * time.Millisecond // a call has waited so long when its node is asked for a sign of life
	answersIn = time.Second            // a node that does not answer a PING within this time is lost
	askAgain  = 100 * time.Millisecond // between two looks for a new master
)

// errLost means that the node of a Cluster that had the call does not answer, and that no other
// node has taken its slots over in time.
var errLost = errors.New("the node of the Cluster does not answer, and no other has its slots")

// suspicions are the nodes of a Cluster that are asked for a sign of life, and the replicas that
// have taken over from nodes that gave none. The zero value is ready.
type suspicions struct {
	mu    sync.RWMutex
	of    map[string]*suspicion // by address
	heirs map[string]heir       // by the address of the lost node
}

// heir is a replica that says that it has taken over from a lost node, while the user's client
// still takes the lost node for the master.
type heir struct {
	node  Node
	since time.Time // when it said so last
}

// heirKnown is for how long a replica counts as an heir after it last said so. By then the client
// has read the slots itself.
const heirKnown = 5 * time.Second

// heirOf returns the heir of a node that the client takes for a master, if there is one. It forgets
// heirs that are too old, or that the client has come to know as masters.
func (all *suspicions) heirOf(master string) (Node, bool) {
	all.mu.RLock()
	none := len(all.heirs) == 0
	all.mu.RUnlock()
	if none {
		return Node{}, false
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	maps.DeleteFunc(all.heirs, func(_ string, h heir) bool {
		return h.node.Addr() == master || time.Since(h.since) > heirKnown
	})
	h, found := all.heirs[master]
	return h.node, found
}

// disown forgets a node as an heir, if it is one.
func (all *suspicions) disown(node Node) {
	all.mu.Lock()
	defer all.mu.Unlock()
	maps.DeleteFunc(all.heirs, func(_ string, h heir) bool { return h.node.Addr() == node.Addr() })
}

// know tells whether the node is under suspicion.
func (all *suspicions) know(node Node) bool {
	all.mu.RLock()
	defer all.mu.RUnlock()
	return all.of[node.Addr()] != nil
}

// suspicion asks a node for a sign of life, as long as it has holders. A node that does not answer
// is lost. From then on the suspicion has the client read the slots again, and asks a replica
// whether it has taken over. The client alone may ask the lost node for the slots, and wait for it.
type suspicion struct {
	client  *Client
	node    Node
	key     string        // a key of the node, "" if none is known yet; guarded by suspicions
	lost    chan struct{} // closed once the node is lost
	back    chan struct{} // closed once it has answered; the suspicion is over
	stop    context.CancelFunc
	holders int // calls that wait for the node, or were abandoned; guarded by suspicions
}

// suspect returns the suspicion of a node, with one holder more, and a function that takes the
// holder away. The node has the key, which is "" if the caller knows none.
func (c *Client) suspect(node Node, key string) (s *suspicion, release func()) {
	all, addr := &c.suspicions, node.Addr()
	all.mu.Lock()
	defer all.mu.Unlock()
	s = all.of[addr]
	if s == nil {
		ctx, stop := context.WithCancel(context.Background())
		s = &suspicion{client: c, node: node, lost: make(chan struct{}), back: make(chan struct{}), stop: stop}
		if all.of == nil {
			all.of = map[string]*suspicion{}
		}
		all.of[addr] = s
		go s.ask(ctx)
	}
	s.key = cmp.Or(s.key, key)
	return s, s.holder()
}

// holder adds a holder, and returns a function that takes it away. The caller holds the mutex of
// suspicions.
func (s *suspicion) holder() (release func()) {
	s.holders++
	return sync.OnceFunc(func() {
		all := &s.client.suspicions
		all.mu.Lock()
		defer all.mu.Unlock()
		if s.holders--; s.holders == 0 {
			s.end()
		}
	})
}

// hold is holder for a caller without the mutex.
func (s *suspicion) hold() (release func()) {
	s.client.suspicions.mu.Lock()
	defer s.client.suspicions.mu.Unlock()
	return s.holder()
}

// end ends the suspicion. Calls that wait later begin another. The caller holds the mutex of
// suspicions.
func (s *suspicion) end() {
	s.stop()
	if all, addr := &s.client.suspicions, s.node.Addr(); all.of[addr] == s {
		delete(all.of, addr)
	}
}

// ask asks the node until it answers, or ctx ends. One PING is under way at a time.
func (s *suspicion) ask(ctx context.Context) {
	node := s.node.within(answersIn)
	lose := sync.OnceFunc(func() {
		close(s.lost)
		go s.search(ctx)
	})
	for {
		answer := make(chan error, 1)
		go func() {
			answer <- node.Call(func(c redis.UniversalClient) error { return c.Ping(ctx).Err() })
		}()
		var err error
		select {
		case err = <-answer:
		case <-time.After(answersIn):
			lose()
			select {
			case err = <-answer:
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		}
		if ctx.Err() != nil {
			return
		}
		if !Unreachable(err) || errors.Is(err, redis.ErrClosed) { // a closed client finds no other master
			s.client.suspicions.mu.Lock()
			defer s.client.suspicions.mu.Unlock()
			s.end()
			close(s.back)
			return
		}
		lose()
		if !sleep(ctx, askAgain) {
			return
		}
	}
}

// search looks for a new master of the lost node's slots, until ctx ends. It finds the heir anew
// each time, so that the heir stays known as long as calls to the lost node hang.
func (s *suspicion) search(ctx context.Context) {
	for {
		s.client.reload(ctx)
		if node, found := s.askReplica(ctx); found {
			all := &s.client.suspicions
			all.mu.Lock()
			if all.heirs == nil {
				all.heirs = map[string]heir{}
			}
			all.heirs[s.node.Addr()] = heir{node, time.Now()}
			all.mu.Unlock()
		}
		if !sleep(ctx, askAgain) {
			return
		}
	}
}

// askReplica returns a replica of the lost node that says that it is the master of slots. It finds
// replicas by a key of the node, so it finds none while it knows no such key.
func (s *suspicion) askReplica(ctx context.Context) (replica Node, found bool) {
	s.client.suspicions.mu.RLock()
	key := s.key
	s.client.suspicions.mu.RUnlock()
	if key == "" {
		return Node{}, false
	}
	var master Node
	err := s.client.Call(func(redis.UniversalClient) error {
		of, err := s.client.cluster.MasterForKey(ctx, key)
		if err != nil {
			return err
		}
		user, err := s.client.cluster.SlaveForKey(ctx, key)
		if err == nil {
			master, replica = Node{of}, Node{user}
		}
		return err
	})
	if err != nil || master.Addr() != s.node.Addr() || replica.Addr() == s.node.Addr() {
		return Node{}, false
	}
	slots, _ := Ask(replica.within(answersIn), func(c redis.UniversalClient) ([]redis.ClusterSlot, error) { return c.ClusterSlots(ctx).Result() })
	for _, of := range slots {
		if len(of.Nodes) > 0 && (of.Nodes[0].Addr == replica.Addr() || strings.HasPrefix(of.Nodes[0].Addr, ":")) {
			return replica, true
		}
	}
	return Node{}, false
}

// master waits until the key has another master, or the lost node answers again. It returns false
// if ctx ends before.
func (s *suspicion) master(ctx context.Context, key string) (found bool) {
	for {
		if node, err := s.client.Node(ctx, key); err == nil && node.Addr() != s.node.Addr() {
			return true
		}
		select {
		case <-s.back:
			return true
		case <-time.After(askAgain):
		case <-ctx.Done():
			return false
		}
	}
}

// AwaitMaster is for a caller whose connection to the master of a key has failed. It has the client
// read the slots again, and returns when that node answers, the key has another master, or ctx
// ends.
func (c *Client) AwaitMaster(ctx context.Context, failed Node, key string) {
	c.reload(ctx)
	s, release := c.suspect(failed, key)
	defer release()
	select {
	case <-s.back:
	case <-s.lost:
		s.master(ctx, key)
	case <-ctx.Done():
	}
}

// sleep returns false if ctx ends before.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// Addr returns the address of the node.
func (n Node) Addr() string { return n.user.Options().Addr }

// within returns a client of the node whose calls wait for an answer for d at most, even if the
// user's client waits for ever. It shares the node's connections.
func (n Node) within(d time.Duration) Node {
	in := n
	_ = n.Call(func(redis.UniversalClient) error { // it runs the hooks' code
		if c, is := n.user.(*redis.Client); is { // as all nodes of a Cluster
			in = Node{c.WithTimeout(d)}
		}
		return nil
	})
	return in
}

// unlessLost makes a call to a node that has the key, and returns its result. If the node is lost,
// it returns the suspicion instead, with a function by which the caller gives it back. Then it has
// not made the call, because the node was lost before, or it has abandoned it. The context of an
// abandoned call ends, so that the client does not repeat it. An abandoned call holds the suspicion
// until it ends, which may take for ever without a ReadTimeout. So the next call is not made, too,
// while the node is lost.
func unlessLost[T any](ctx context.Context, c *Client, node Node, key string, call func(context.Context) T) (result T, lost *suspicion, release func()) {
	if c.cluster == nil {
		return call(ctx), nil, nil
	}
	if c.suspicions.know(node) {
		s, release := c.suspect(node, key)
		select {
		case <-s.lost:
			return result, s, release
		default:
			release()
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan T, 1)
	go func() {
		var result T
		defer func() { done <- result }() // a hook may end the goroutine
		result = call(ctx)
	}()
	timer := time.NewTimer(slowAfter)
	defer timer.Stop()
	var s *suspicion
	release = func() {}
	for {
		var isLost, isBack chan struct{}
		if s != nil {
			isLost, isBack = s.lost, s.back
		}
		select {
		case result = <-done:
			release()
			return result, nil, nil
		case <-timer.C:
			s, release = c.suspect(node, key)
		case <-isBack: // so the call takes its time, or was lost on its way
			release()
			s, release = nil, func() {}
			timer.Reset(slowAfter)
		case <-isLost:
			c.abandoned.Add(1)
			kept := release
			go func() {
				<-done
				c.abandoned.Add(-1)
				kept()
			}()
			return result, s, s.hold()
		}
	}
}

// Abandoned tells whether a call was abandoned that is still under way. The client may read its
// arguments yet, so their memory is not used again meanwhile.
func (c *Client) Abandoned() bool { return c.abandoned.Load() > 0 }

// onMaster makes a call that may run twice to the master of a key. If the node is lost, it makes
// the call again once another has taken over, or the same answers again. It returns errLost if that
// takes longer than the client itself would try.
func onMaster[T any](ctx context.Context, c *Client, key string, call func(context.Context, route) T) (result T, err error) {
	to, err := c.route(ctx, key)
	if err != nil {
		return result, err
	}
	if c.cluster == nil {
		return call(ctx, to), nil
	}
	patience, cancel := context.WithTimeout(ctx, c.patience())
	defer cancel()
	for {
		at := to // which an abandoned call may read after the next one has begun
		result, lost, release := unlessLost(ctx, c, at.node, key, func(ctx context.Context) T { return call(ctx, at) })
		if lost == nil {
			return result, nil
		}
		found := lost.master(patience, key)
		release()
		if !found {
			return result, cmp.Or(guard.Err(ctx), errLost)
		}
		if to, err = c.route(ctx, key); err != nil {
			return result, err
		}
	}
}

// AskKey makes a call that may run twice and returns a value, about a key, with the user's client.
// If the key's node of a Cluster does not answer, AskKey makes the call again to the next one.
func AskKey[T any](ctx context.Context, c *Client, key string, ask func(context.Context, redis.UniversalClient) (T, error)) (value T, err error) {
	return askRoute(ctx, c, key, func(ctx context.Context, to route) (T, error) {
		return askGuarded(to.user, func(user redis.UniversalClient) (T, error) { return ask(ctx, user) })
	}, func(to route) bool { return to.heir })
}

// AskMaster is AskKey, but the call goes to the master of the key even if it names no key, and a
// pipeline goes there in one piece.
func AskMaster[T any](ctx context.Context, c *Client, key string, ask func(context.Context, redis.UniversalClient) (T, error)) (value T, err error) {
	return askRoute(ctx, c, key, func(ctx context.Context, to route) (T, error) {
		return Ask(to.node, func(node redis.UniversalClient) (T, error) { return ask(ctx, node) })
	}, func(route) bool { return c.cluster != nil })
}

// askRoute makes a call by onMaster. If it went to a node directly, which has the key no more, it
// makes the call again.
func askRoute[T any](ctx context.Context, c *Client, key string, ask func(context.Context, route) (T, error), direct func(route) bool) (value T, err error) {
	type answer struct {
		value T
		err   error
		by    route
		came  bool // else a hook has ended the goroutine of the call
	}
	for began := time.Now(); ; {
		got, err := onMaster(ctx, c, key, func(ctx context.Context, to route) (a answer) {
			a.value, a.err = ask(ctx, to)
			a.by, a.came = to, true
			return a
		})
		switch {
		case err != nil:
			return value, err
		case !got.came:
			return value, errNoReply
		case !direct(got.by) || !moved(got.err) || !c.follow(ctx, got.by.node, began):
			return got.value, got.err
		}
	}
}

// moved tells whether a node has refused a call because another node has the key.
func moved(err error) bool {
	_, is := redis.IsMovedError(err)
	return is
}

// follow prepares the repeat of a call that a node has refused because another node has the key.
// The node's own client does not follow. Only the user's client learns where keys are. follow
// returns false if the call has taken as long as the client would try.
func (c *Client) follow(ctx context.Context, from Node, began time.Time) bool {
	c.suspicions.disown(from)
	c.reload(ctx)
	return time.Since(began) < c.patience() && sleep(ctx, askAgain)
}

// patience is for how long the client of a Cluster tries a call to a node that does not answer. A
// client without a ReadTimeout would wait for ever. It counts as one with the default.
func (c *Client) patience() time.Duration {
	options := c.cluster.Options()
	timeout := options.ReadTimeout
	if timeout <= 0 {
		timeout = 3 * time.Second
	}
	return time.Duration(max(options.MaxRedirects, 0)+1) * timeout
}
