package meta

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestExponentialBackoffStaysInItsBounds(t *testing.T) {
	t.Parallel()
	for _, initial := range []time.Duration{0, 1, time.Second, MaxDelay} {
		for _, highest := range []time.Duration{initial, max(initial, time.Minute), MaxDelay} {
			backoff := Exponential(initial, highest).Wait
			for _, delivery := range []int{1, 2, 60, 1024, 1025, 2000, math.MaxInt} {
				wait := backoff(delivery)
				require.GreaterOrEqual(t, wait, time.Duration(0), "%v..%v after %d", initial, highest, delivery)
				require.LessOrEqual(t, wait, min(highest+highest/5, MaxDelay), "%v..%v after %d", initial, highest, delivery)
			}
		}
	}
}
