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

// twoServers fakes two servers without a network. One hangs: its calls last as long as their
// context.
type twoServers struct {
	mu       sync.Mutex
	answered int
}

func (s *twoServers) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (s *twoServers) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (s *twoServers) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) (err error) {
		answered := 0
		for _, cmd := range cmds { // a server has the commands about its own topics
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

// Otherwise other schedulers could take over the other servers' topics only when the leases expire.
func TestHangingServerDoesNotDelayLeavingTopicsOfOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScheduler(t)
		answers := &twoServers{}
		s.config.Client.AddHook(answers)
		const each = 2 * batch
		var topics []*served
		stopped := 0
		for name, p := range map[string]*pool{"hangs": newPool(), "answers": newPool()} {
			for i := range each {
				topics = append(topics, &served{
					topic: queue.NewTopic(s.client, "p", fmt.Sprint(name, i)),
					stop:  func() { stopped++ },
					pool:  p,
				})
			}
		}
		rand.Shuffle(len(topics), func(i, j int) { topics[i], topics[j] = topics[j], topics[i] })
		s.leave(topics...)
		require.Equal(t, 2*each, stopped)
		require.Equal(t, each, answers.answered)
	})
}
