package admin

import (
	"reflect"
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

func TestFilterWithAnyConditionIsNotZero(t *testing.T) {
	t.Parallel()
	require.True(t, Filter{}.isZero())
	require.True(t, Filter{Metadata: map[string]string{}}.isZero())
	for i, field := range reflect.VisibleFields(reflect.TypeFor[Filter]()) {
		var f Filter
		switch at := reflect.ValueOf(&f).Elem().Field(i); at.Kind() {
		case reflect.String:
			at.SetString("x")
		case reflect.Map:
			at.Set(reflect.MakeMap(at.Type()))
			at.SetMapIndex(reflect.ValueOf("x"), reflect.Zero(at.Type().Elem()))
		case reflect.Func:
			f.Match = func(Message) bool { return true }
		default:
			at.Set(reflect.ValueOf(time.Now()))
		}
		require.False(t, f.isZero(), field.Name)
	}
}
