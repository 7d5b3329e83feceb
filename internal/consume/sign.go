package consume

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

const (
	signWithin = 400 * time.Millisecond // a sign that has no answer by then goes over another connection
	signAgain  = 50 * time.Millisecond  // the pause after one that failed
	signTries  = 3
)

// signing is about the signs of life that go by themselves. Guarded by mu.
type signing struct {
	worker string // of the last contact; "": there was none
	busy   bool   // a sign is under way
	again  bool   // another one is to follow
	ended  bool   // no more signs
}

// sign shows Redis at once that the subscription lives. It waits for no exchange, because that may
// be stuck on a connection that is gone too. While a sign is under way, at most one more follows.
func (s *Subscription) sign() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.signing.again = true
	if s.signing.busy || s.signing.ended || s.signing.worker == "" {
		return
	}
	s.signing.busy = true
	s.others.Go(s.signs)
}

func (s *Subscription) signs() {
	for {
		s.mu.Lock()
		worker := s.signing.worker
		if !s.signing.again || s.signing.ended {
			s.signing.busy = false
			s.mu.Unlock()
			return
		}
		s.signing.again = false
		s.mu.Unlock()
		for range signTries {
			err := s.signOnce(worker)
			if err == nil || s.link.ctx.Err() != nil {
				break
			}
			s.Logger.Debug("Cannot show Redis that the subscription lives, trying again", watermill.LogFields{"err": err})
			time.Sleep(signAgain)
		}
	}
}

func (s *Subscription) signOnce(worker string) error {
	ctx, cancel := context.WithTimeout(s.link.ctx, signWithin)
	defer cancel()
	answered := make(chan error, 1)
	s.others.Go(func() { answered <- s.group.Sign(ctx, s.Name, worker) }) // go-redis may not heed the context
	select {
	case err := <-answered:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// endSigning has no further sign begin.
func (s *Subscription) endSigning() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.signing.ended = true
}
