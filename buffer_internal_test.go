package redisdelay

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// numbered are messages with so many sequence numbers from first on, and bodies.
func numbered(first uint64, n int) []leased {
	messages := make([]leased, n)
	for i := range messages {
		messages[i] = leased{Leased: queue.Leased{Body: []byte("x")}, sequence: first + uint64(i)}
	}
	return messages
}

func sequences(messages []leased) []uint64 {
	all := make([]uint64, len(messages))
	for i, m := range messages {
		all[i] = m.sequence
	}
	return all
}

// It is a queue, and keeps nothing of what has left it.
func TestBuffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b buffer
		want := []uint64{}
		next, popped := uint64(1), leased{}
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				n := rapid.IntRange(0, 20).Draw(t, "n")
				b.append(numbered(next, n))
				want = append(want, sequences(numbered(next, n))...)
				next += uint64(n)
				popped = leased{}
			},
			"pop": func(t *rapid.T) {
				if len(want) == 0 {
					t.Skip()
				}
				require.Equal(t, want[0], b.first().sequence)
				popped = b.pop()
				require.Equal(t, want[0], popped.sequence)
				want = want[1:]
			},
			"unpop": func(t *rapid.T) {
				if popped.sequence == 0 {
					t.Skip()
				}
				b.unpop(popped)
				want = slices.Insert(slices.Clone(want), 0, popped.sequence)
				popped = leased{}
			},
			"remove": func(t *rapid.T) {
				of := rapid.Uint64Range(1, 5).Draw(t, "of")
				gone := func(sequence uint64) bool { return sequence%of == 0 }
				left := slices.DeleteFunc(slices.Clone(want), gone)
				require.Equal(t, len(left) < len(want), b.remove(func(m *leased) bool { return gone(m.sequence) }))
				want, popped = left, leased{}
			},
			"": func(t *rapid.T) {
				require.Equal(t, len(want), b.len())
				require.Equal(t, want, sequences(b.all()))
				for _, m := range slices.Concat(b.array[:b.taken], b.array[len(b.array):cap(b.array)]) {
					require.Zero(t, m)
				}
			},
		})
	})
}

// What comes takes the place of what is gone.
func TestBufferNeedsNoMoreMemoryUnderLoad(t *testing.T) {
	var b buffer
	messages := numbered(1, 300)
	b.append(messages)
	b.append(messages)
	before := cap(b.array)
	for range 100 {
		for range 300 {
			b.pop()
		}
		b.append(messages)
	}
	require.Equal(t, 600, b.len())
	require.Equal(t, before, cap(b.array))
}
