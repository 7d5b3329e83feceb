package dashboard

import "sync"

// Limits of what one address or one user may take of the page at the same time.
const (
	maxLogins        = 10  // requests with a password under way, for one address
	maxStreams       = 200 // browsers that are connected for news
	maxStreamsOfUser = 50  // of one user
)

// places are a limit of how many things are under way for one name, and in all.
type places struct {
	each, all int // 0: no limit

	mu    sync.Mutex
	total int
	taken map[string]*taken // has no name with nothing under way
}

// taken is what is under way for one name.
type taken struct {
	places  int
	refused bool // one was refused since the first of these
}

// outcome is what became of an attempt to take a place.
type outcome int

const (
	granted outcome = iota
	refusedFirst
	refusedAgain // of the same name, while it has places
	full         // all places are taken, by others too
)

// take takes a place for a name. Each granted one is given back by give.
func (p *places) take(name string) outcome {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.taken[name]
	switch {
	case t != nil && p.each > 0 && t.places >= p.each && t.refused:
		return refusedAgain
	case t != nil && p.each > 0 && t.places >= p.each:
		t.refused = true
		return refusedFirst
	case p.all > 0 && p.total >= p.all:
		return full
	case t == nil:
		if p.taken == nil {
			p.taken = map[string]*taken{}
		}
		t = &taken{}
		p.taken[name] = t
	}
	t.places++
	p.total++
	return granted
}

// give gives a place back.
func (p *places) give(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.taken[name]
	t.places--
	p.total--
	if t.places == 0 {
		delete(p.taken, name)
	}
}
