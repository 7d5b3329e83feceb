package admin

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestIntervalsOfManyYearsFollowOneAnother(t *testing.T) {
	t.Parallel()
	first, width := time.UnixMilli(1795233210078), 876_000*time.Hour+time.Microsecond // 100 years, rounded up
	for i := range 1000 {
		want := first.UnixMilli() + int64(i)*(876_000*3_600_000+1)
		require.Equal(t, want, bucketStart(first, width, i).UnixMilli())
	}
}
