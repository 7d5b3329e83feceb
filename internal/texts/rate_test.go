package texts_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

func TestRatesAsPeopleSayThem(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		rate  float64
		again string
	}{
		"50/s": {50, "50/s"}, "0.5/s": {0.5, "30/m"}, "10/m": {10. / 60, "10/m"}, "1/h": {1. / 3600, "1/h"}, "1/d": {1. / 86400, "1/d"},
		"100/5s": {20, "20/s"}, "1/3s": {1. / 3, "20/m"}, "100000/s": {100_000, "100000/s"}, "1/100ms": {10, "10/s"}, "3/1h30m": {3. / 5400, "2/h"},
	} {
		got, err := texts.ParseRate(text)
		require.NoError(t, err, text)
		require.InDelta(t, want.rate, got, 1e-12, text)
		require.Equal(t, want.again, texts.Rate(got), text)
	}
	require.Equal(t, "49.9999/s", texts.Rate(49.99991))
	require.Empty(t, texts.Rate(0))
}

func TestWhatIsNoRateIsRefusedByWhatIsWrong(t *testing.T) {
	t.Parallel()
	for text, fault := range map[string]string{
		"": "is empty; want", "50": "has no time", "50/": `"" is no time`, "/s": `"" is not a number`, "many/s": `"many" is not a number`,
		"NaN/s": `"NaN" is not a number`, "inf/s": `"inf" is not a number`, "0/s": "above 0", "-1/s": "above 0", "5/w": `"w" is no time`,
		"5/0s": `"0s" is not above 0`, "5/-1s": `"-1s" is not above 0`, "5/5": `"5" is no time`, "5/s/s": `"s/s" is no time`,
	} {
		_, err := texts.ParseRate(text)
		require.ErrorContains(t, err, fault, text)
		require.ErrorContains(t, err, "such as 50/s, 10/m, 1/h, 1/d or 100/5s", text)
	}
}
