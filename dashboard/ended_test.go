package dashboard_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// A line that is older than what one page reads is found, on the page of the message and behind
// "Older".
func TestAMessageThatEndedLongAgoIsFound(t *testing.T) {
	redistest.Real(t, func(t *testing.T, server redistest.Server) {
		s := siteOn(t, server, operator)
		s.publish("orders", time.Hour, nil, "x")
		key := queue.NewKeys(s.Prefix, "orders").Ended()
		for batch := range 52 {
			pipe := s.Client.Pipeline()
			for i := range 1000 {
				n := batch*1000 + i
				pipe.XAdd(t.Context(), &redis.XAddArgs{Stream: key, ID: fmt.Sprintf("%d-1", n+1), Values: []any{"how", "cancelled", "id", fmt.Sprintf("id%d", n), "at", n + 1}})
			}
			_, err := pipe.Exec(t.Context())
			require.NoError(t, err)
		}
		_, body := s.get("/ended?t=orders&name=id7")
		require.Contains(t, body, "Nothing of that name is among the newest lines")
		_, body = s.get(nextOf(t, body))
		require.Contains(t, body, "id7</a>")
		status, body := s.get("/message?t=orders&id=id7")
		require.Equal(t, http.StatusOK, status)
		require.Contains(t, body, "Cancelled")
	})
}

func TestAPageSaysThatItMayNotReadTheHistory(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.publish("orders", time.Hour, nil, "x")
	s.beforeEach(func(call redis.Cmder) error {
		if call.Name() == "xrevrange" {
			return errors.New("NOPERM this user has no permissions to run the 'xrevrange' command")
		}
		return nil
	})
	_, body := s.get("/message?t=orders&id=01M7Y3SQGNBVX5P66MY8JV56FH")
	require.Contains(t, body, "what became of it is not known")
}
