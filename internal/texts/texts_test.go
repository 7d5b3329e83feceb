package texts_test

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

func TestNumbersHaveCommas(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", -999: "-999", -1000: "-1,000", 1234567: "1,234,567"} {
		require.Equal(t, want, texts.Number(n))
	}
}

func TestManyThingsHaveAPlural(t *testing.T) {
	t.Parallel()
	require.Equal(t, "0 messages", texts.Many(0, "message"))
	require.Equal(t, "1 delivery", texts.Many(1, "delivery"))
	require.Equal(t, "2 deliveries", texts.Many(2, "delivery"))
	require.Equal(t, "5,000 dead letters", texts.Many(5000, "dead letter"))
}

func TestATextIsCutBetweenCharacters(t *testing.T) {
	t.Parallel()
	text := "aé€😀"
	for most := range len(text) + 2 {
		cut := texts.Clip(text, most)
		require.LessOrEqual(t, len(cut), most)
		require.True(t, utf8.ValidString(cut), "%d: %q", most, cut)
		require.Greater(t, len(cut)+utf8.UTFMax, min(most, len(text)))
	}
	require.Equal(t, "\x80\x80\x80\x80\x80", texts.Clip("\x80\x80\x80\x80\x80\x80", 5), "which is not UTF-8")
}

func TestNamesSaysHowManyItLeavesOut(t *testing.T) {
	t.Parallel()
	require.Empty(t, texts.Names(nil))
	require.Equal(t, `"a", "b\n"`, texts.Names([]string{"a", "b\n"}))
	many := texts.Names(slices.Repeat([]string{"a"}, 1500))
	require.Equal(t, texts.NamesMost, strings.Count(many, `"a"`))
	require.Contains(t, many, ", and 1,490 more")
}
