package queue_test

import (
	"bytes"
	"io"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

func TestIDsSortByTheTimeAndOrderInWhichTheyWereMade(t *testing.T) {
	t.Parallel()
	ids := queue.NewIDs()
	clock := time.Now()
	last := ""
	for i := range 100_000 {
		switch {
		case i%1000 == 999:
			clock = clock.Add(-time.Hour) // a clock that is set back
		case i%100 == 99:
			clock = clock.Add(time.Millisecond)
		case i%5000 == 1:
			clock = clock.Add(2 * time.Hour)
		}
		id, err := ids.Next(clock)
		require.NoError(t, err)
		require.Len(t, id, queue.IDLength)
		if id <= last {
			require.Greater(t, id, last)
		}
		last = id
	}
}

func TestMessagesAreGivenIDsInTheirOrder(t *testing.T) {
	t.Parallel()
	ids, clock, last := queue.NewIDs(), time.Now(), ""
	for n := range 100 {
		messages := make([]queue.Message, n)
		require.NoError(t, ids.Give(messages, clock.Add(time.Duration(-n)*time.Second)))
		for _, m := range messages {
			_, err := ulid.ParseStrict(m.ID)
			require.NoError(t, err)
			require.Greater(t, m.ID, last)
			last = m.ID
		}
	}
}

func TestIDHasTheTimeOfItsMaking(t *testing.T) {
	t.Parallel()
	clock := time.Date(2030, 1, 2, 3, 4, 5, 678_999_999, time.UTC)
	id, err := queue.NewIDs().Next(clock)
	require.NoError(t, err)
	parsed, err := ulid.ParseStrict(id)
	require.NoError(t, err)
	require.Equal(t, clock.Truncate(time.Millisecond), parsed.Timestamp().UTC())
}

func TestTwoSourcesMakeDifferentIDs(t *testing.T) {
	t.Parallel()
	clock := time.Now()
	seen := map[string]bool{}
	for range 1000 {
		id, err := queue.NewIDs().Next(clock)
		require.NoError(t, err)
		require.False(t, seen[id])
		seen[id] = true
	}
}

func TestIDsGoOnInTheNextMillisecondWhenOneIsFull(t *testing.T) {
	t.Parallel()
	full := bytes.NewReader(bytes.Repeat([]byte{0xff}, 10))
	ids := queue.NewIDsFrom(io.MultiReader(full, ones{}))
	clock := time.UnixMilli(1_000_000)
	var last string
	for range 5 {
		id, err := ids.Next(clock)
		require.NoError(t, err)
		require.Greater(t, id, last)
		last = id
	}
	parsed, err := ulid.ParseStrict(last)
	require.NoError(t, err)
	require.EqualValues(t, 1_000_001, parsed.Time())
}

type ones struct{}

func (ones) Read(p []byte) (int, error) { return copy(p, bytes.Repeat([]byte{1}, len(p))), nil }

func TestNoIDWithoutRandomness(t *testing.T) {
	t.Parallel()
	_, err := queue.NewIDsFrom(bytes.NewReader(nil)).Next(time.Now())
	require.ErrorIs(t, err, io.EOF)
}

func TestNoIDForATimeThatItCannotHold(t *testing.T) {
	t.Parallel()
	_, err := queue.NewIDs().Next(time.UnixMilli(1 << 48))
	require.ErrorIs(t, err, ulid.ErrBigTime)
}

func TestIDsMayBeMadeConcurrently(t *testing.T) {
	t.Parallel()
	ids := queue.NewIDs()
	var mu sync.Mutex
	var wg sync.WaitGroup
	seen := map[string]bool{}
	for range 8 {
		wg.Go(func() {
			last := ""
			for range 1000 {
				id, err := ids.Next(time.Now())
				mu.Lock()
				if err != nil || id <= last || seen[id] {
					t.Errorf("%q after %q: %v", id, last, err)
				}
				seen[id] = true
				mu.Unlock()
				last = id
			}
		})
	}
	wg.Wait()
	require.Len(t, seen, 8000)
}

func TestTokensAreRandomLettersAndDigits(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^[0-9A-Z]{16}$`)
	seen := map[string]bool{}
	for range 10_000 {
		token := queue.Token()
		require.Regexp(t, form, token)
		require.False(t, seen[token])
		seen[token] = true
	}
}
