package queue

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

// suspicions are the nodes of a Cluster that calls wait for. The zero value is ready.
type suspicions struct {
	mu    sync.RWMutex
	of    map[string]*suspicion // by address
	heirs map[string]heir       // by the address of the lost node
}

// heir is a replica that has taken over the slots of a lost node.
type heir struct {
	node  Node
	since time.Time
}

// heirKnown is for how long an heir counts at most. By then the client has read the slots itself.
const heirKnown = 5 * time.Second

// heirOf returns the replica that has taken over from the node that the client takes for a master,
// if there is one. An heir that the client itself names counts no longer, since later changes are
// the client's to see.
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

// know tells whether the node is under suspicion.
func (all *suspicions) know(node Node) bool {
	all.mu.RLock()
	defer all.mu.RUnlock()
	return all.of[node.Addr()] != nil
}

// suspicion asks a node for a sign of life, as long as somebody holds it. A node that does not
// answer is lost. From then on the suspicion has the client read the slots again, and asks a
// replica whether it has taken over. The client alone may wait for the lost node to do that.
type suspicion struct {
	client  *Client
	node    Node
	key     string        // a key of the node, "" if none is known yet; guarded by suspicions
	lost    chan struct{} // closed once the node is lost
	back    chan struct{} // closed once it has answered; the suspicion is over
	stop    context.CancelFunc
	holders int // guarded by suspicions
}

// suspect returns the suspicion of a node that has the key, and a function that gives it back. The
// key is "" if the caller knows none.
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
	s.holders++
	return s, sync.OnceFunc(func() {
		all.mu.Lock()
		defer all.mu.Unlock()
		if s.holders--; s.holders == 0 {
			s.end()
		}
	})
}

// end has the next call begin another suspicion. The caller holds the mutex of suspicions.
func (s *suspicion) end() {
	s.stop()
	if all, addr := &s.client.suspicions, s.node.Addr(); all.of[addr] == s {
		delete(all.of, addr)
	}
}

// ask asks the node until it answers, or ctx ends. One PING is under way at a time.
func (s *suspicion) ask(ctx context.Context) {
	lose := sync.OnceFunc(func() {
		close(s.lost)
		go s.search(ctx)
	})
	for {
		answer := make(chan error, 1)
		go func() {
			answer <- s.node.Call(func(c redis.UniversalClient) error { return c.Ping(ctx).Err() })
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

// search looks for a new master of the lost node's slots, until ctx ends.
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

// askReplica returns a replica of the lost node that says that it has slots. It needs a key of the
// node: for "" the client chooses any node, and for the key of another node a replica of that.
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
	slots, _ := Ask(replica, func(c redis.UniversalClient) ([]redis.ClusterSlot, error) { return c.ClusterSlots(ctx).Result() })
	for _, of := range slots {
		if len(of.Nodes) > 0 && (of.Nodes[0].Addr == replica.Addr() || strings.HasPrefix(of.Nodes[0].Addr, ":")) {
			return replica, true
		}
	}
	return Node{}, false
}

// master waits until a key has a master that answers: another node, or the lost one again. It
// returns false if ctx ends before.
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

// AwaitMaster waits, after a connection to the node that has a key has failed, until it answers or
// another node has taken over. It has the client read the slots again. It returns early if ctx
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

// unlessLost makes a call to a node, and returns its result. If the node is lost before it answers,
// unlessLost abandons the call, and returns the suspicion, which the caller gives back. The context
// of the abandoned call ends, so that the client does not repeat it. key is one of the node.
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
			go func() {
				<-done
				c.abandoned.Add(-1)
			}()
			return result, s, release
		}
	}
}

// Abandoned tells whether a call was abandoned that is still under way. The client may read its
// arguments yet, so their memory is not used again meanwhile.
func (c *Client) Abandoned() bool { return c.abandoned.Load() > 0 }

// onMaster makes a call that may run twice to the master of a key: with its node, or a client that
// reaches it. If the node is lost, it makes the call again when another has taken over, or the same
// answers again. It returns errLost if that takes longer than the client itself would try.
func onMaster[T any](ctx context.Context, c *Client, key string, call func(context.Context, Node, redis.UniversalClient) T) (result T, err error) {
	node, user, err := c.route(ctx, key)
	if err != nil {
		return result, err
	}
	if c.cluster == nil {
		return call(ctx, node, user), nil
	}
	patience, cancel := context.WithTimeout(ctx, c.patience())
	defer cancel()
	for {
		result, lost, release := unlessLost(ctx, c, node, key, func(ctx context.Context) T { return call(ctx, node, user) })
		if lost == nil {
			return result, nil
		}
		found := lost.master(patience, key)
		release()
		if !found {
			return result, cmp.Or(guard.Err(ctx), errLost)
		}
		if node, user, err = c.route(ctx, key); err != nil {
			return result, err
		}
	}
}

// AskMaster makes a call that may run twice and returns a value, with a client of the node that has
// a key. If that node of a Cluster does not answer, it makes the call again to the next one.
func AskMaster[T any](ctx context.Context, c *Client, key string, ask func(context.Context, redis.UniversalClient) (T, error)) (value T, err error) {
	type answer struct {
		value T
		err   error
		came  bool // else a hook has ended the goroutine of the call
	}
	got, err := onMaster(ctx, c, key, func(ctx context.Context, node Node, _ redis.UniversalClient) (a answer) {
		a.value, a.err = Ask(node, func(c redis.UniversalClient) (T, error) { return ask(ctx, c) })
		a.came = true
		return a
	})
	switch {
	case err != nil:
		return value, err
	case !got.came:
		return value, errNoReply
	}
	return got.value, got.err
}

// patience is for how long the client of a Cluster tries a call to a node that does not answer.
func (c *Client) patience() time.Duration {
	options := c.cluster.Options()
	timeout := options.ReadTimeout
	if timeout <= 0 {
		timeout = 3 * time.Second
	}
	return time.Duration(max(options.MaxRedirects, 0)+1) * timeout
}
