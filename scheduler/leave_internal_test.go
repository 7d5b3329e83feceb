package scheduler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// servers are without a network. One of them hangs: calls about its topics last as long as their context.
type servers struct {
	mu       sync.Mutex
	answered int
}

func (s *servers) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (s *servers) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (s *servers) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) (err error) {
		answered := 0
		for _, cmd := range cmds { // each server has those about its own topics
			if strings.Contains(fmt.Sprint(cmd.Args()...), "{hangs") {
				<-ctx.Done()
				err = ctx.Err()
				cmd.SetErr(err)
				continue
			}
			cmd.(*redis.Cmd).SetVal(int64(1))
			answered++
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.answered += answered
		return err
	}
}

// Else nobody would look in its place on the other servers until the leases end.
func TestAServerThatHangsKeepsNoTopicsOfOthersFromBeingLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScheduler(t)
		answers := &servers{}
		s.config.Client.AddHook(answers)
		const each = 2 * batch
		var topics []*served
		stopped := 0
		for name, c := range map[string]*crew{"hangs": newCrew(), "answers": newCrew()} {
			for i := range each {
				topics = append(topics, &served{
					topic: queue.NewTopic(s.client, "p", fmt.Sprint(name, i)),
					stop:  func() { stopped++ },
					crew:  c,
				})
			}
		}
		rand.Shuffle(len(topics), func(i, j int) { topics[i], topics[j] = topics[j], topics[i] })
		s.leave(topics...)
		require.Equal(t, 2*each, stopped)
		require.Equal(t, each, answers.answered)
	})
}
