package dashboard_test

import (
	"errors"
	"html"
	"net/http"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// many makes topics whose groups nobody reads.
func (s *site) many(names ...string) {
	s.t.Helper()
	for _, name := range names {
		testkit.Groups(s.t, s.Server, name, "g")
	}
	_, err := s.Client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, name := range names {
			p.RPush(ctx, queue.NewKeys(s.Prefix, name).Ready("g"), "01M7Y3SQGNBVX5P66MY8JV56FH:1000")
		}
		return nil
	})
	require.NoError(s.t, err)
}

// The page has the lines and the words of the tool, and links what it folds.
func TestThePageFoldsProblemsAsTheToolDoes(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.many("a", "b", "c")
	var lines []admin.Folded
	require.Eventually(t, func() bool {
		d, err := s.admin.Diagnose(ctx, admin.DiagnoseOptions{})
		require.NoError(t, err)
		lines = admin.FoldProblems(d.Problems)
		_, body := s.get("/")
		return strings.Contains(body, "There are 3 groups without a subscriber. The worst: ")
	}, testkit.Soon, testkit.Soon/1000)
	for _, line := range lines {
		if line.Kind == admin.UnreadGroup {
			require.Equal(t, 3, line.Count)
		}
	}
	_, body := s.get("/")
	require.Contains(t, html.UnescapeString(body), `href="/problems?kind=unread+group">Show all 3</a>`)
	_, body = s.get("/problems?kind=unread+group")
	for _, name := range []string{"a", "b", "c"} {
		require.Contains(t, body, "Nobody subscribes to group &#34;g&#34; of topic &#34;"+name+"&#34;")
	}

	status, _ := s.post("/problems/ignore", "kind", "unread group", "t", "b")
	require.Equal(t, http.StatusBadRequest, status, "without a reason")
	status, to := s.post("/problems/ignore", "kind", "unread group", "t", "b", "why", "it starts in May")
	require.Equal(t, http.StatusSeeOther, status)
	_, body = s.get(to)
	require.Contains(t, body, "1 problem ignored")
	require.Contains(t, body, "ignored by &#34;ann&#34; since ")
	require.Contains(t, body, "because: &#34;it starts in May&#34;")
	_, body = s.get("/")
	require.Contains(t, body, "1 problem ignored")
	require.Contains(t, body, "There are 2 groups without a subscriber")
	ignored, err := s.admin.IgnoredProblems(ctx)
	require.NoError(t, err)
	require.Len(t, ignored, 1)
	require.Equal(t, admin.Warning, ignored[0].Severity)
	status, to = s.post("/problems/unignore", "kind", "unread group", "t", "b")
	require.Equal(t, http.StatusSeeOther, status)
	_, body = s.get(to)
	require.NotContains(t, body, "ignored by")
	acts, _, err := s.admin.Acts(ctx, "", 10)
	require.NoError(t, err)
	require.Equal(t, "unignore", acts[0].Action)
	require.Equal(t, "unread group: it starts in May", acts[1].Detail)

	looking := siteOn(t, s.Server, viewer)
	status, _ = looking.post("/problems/ignore", "kind", "unread group", "why", "x")
	require.Equal(t, http.StatusForbidden, status)
	_, body = looking.get("/problems?kind=unread+group")
	require.NotContains(t, body, "Ignore…")
}

func TestThePageShowsMemoryByTopicAndState(t *testing.T) {
	t.Parallel()
	s := newSite(t, viewer)
	s.publish("orders", 1000_000_000_000, nil, strings.Repeat("x", 20_000))
	use, err := s.admin.Memory(ctx, admin.MemoryOptions{})
	require.NoError(t, err)
	status, body := s.get("/memory")
	require.Equal(t, 200, status)
	require.Contains(t, body, use.String())
	require.Contains(t, body, `href="/topic?t=orders"`)
	require.Contains(t, body, texts.Bytes(use.Topics[0].Waiting)+"</td>")
}

func TestThePageSaysOnceWhatReasonsShare(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	s.die("orders", "deliver order 7: the partner answered 500", "deliver order 8: the partner answered 429")
	_, body := s.get("/dead?t=orders&g=g")
	require.Contains(t, body, "All begin with &#34;deliver order #: the partner answered &#34;.")
	require.Contains(t, body, `<code class="reason">…500</code>`)
	require.Contains(t, html.UnescapeString(body), "reason=deliver+order+%23%3A+the+partner+answered+500", "links have the whole reason")
}

// A page of problems says so if it does not know them.
func TestThePageDoesNotSayThatAllIsWellIfItCannotRead(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	shows := func(yes, no string) {
		t.Helper()
		require.Eventually(t, func() bool {
			_, body := s.get("/problems")
			return strings.Contains(body, yes) && !strings.Contains(body, no)
		}, testkit.Soon, testkit.Soon/1000)
	}
	shows("Nothing is wrong", "You see what was read before")
	s.beforeEach(func(redis.Cmder) error { return errors.New("LOADING Redis is loading") })
	shows("You see what was read before", "Nothing is wrong")
	s.beforeEach(func(redis.Cmder) error { return nil })
	shows("Nothing is wrong", "You see what was read before")
}
