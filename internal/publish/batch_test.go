package publish

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

func TestAFreeBatchKeepsNothingOfItsLastCall(t *testing.T) {
	var p batches
	for _, n := range []int{1, 3} {
		b := p.get(n)
		require.Len(t, b.Messages, n)
		b.Messages[0] = queue.Message{ID: "id", Body: []byte("body")}
		b.Bytes, b.prepared, b.err, b.ctx, b.turn = 4, time.Now(), errors.New("failed"), t.Context(), putBack
		done := b.done
		p.put(b)
		require.Equal(t, &Batch{done: done}, b)
	}
}

func TestBodiesOfACallHaveMemoryOfTheirOwn(t *testing.T) {
	t.Parallel()
	var p batches
	b := p.get(1)
	for range 3 { // from the second time on the memory is used again
		var bodies [][]byte
		for i := range 200 {
			size := 1 + i*i%997
			if i == 150 {
				size = 2 * mostKept
			}
			body := b.Take(size)
			require.Empty(t, body)
			require.Equal(t, size, cap(body))
			bodies = append(bodies, append(body, bytes.Repeat([]byte{byte(i)}, size)...))
		}
		for i, body := range bodies {
			require.Equal(t, bytes.Repeat([]byte{byte(i)}, cap(body)), body)
		}
		p.put(b) // and nobody else gets it
	}
}

func TestMemoryForBodiesIsUsedAgain(t *testing.T) {
	t.Parallel()
	var p batches
	for _, size := range []int{1, 100, 144, mostKept / 4} {
		b := &Batch{done: make(chan struct{}, 1)}
		for range 10_000 {
			b.Take(size)
		}
		p.put(b)
		require.Empty(t, b.bodies)
		kept := cap(b.bodies)
		require.LessOrEqual(t, kept, mostKept)
		require.GreaterOrEqual(t, kept, mostKept/2)
		b.Take(mostKept/4 + 1)
		require.Empty(t, b.bodies, "a large body has its own memory")
		b.Take(size)
		require.Len(t, b.bodies, size)
		require.Equal(t, kept, cap(b.bodies), "kept memory is not used")
	}
}
