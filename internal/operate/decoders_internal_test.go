package operate

import (
	"errors"
	"testing"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

func FuzzCursors(f *testing.F) {
	for _, cursor := range []string{"", "1:a", "1", "x:a", ":", "1:", "NaN:a", "1e309", "-1:a:b"} {
		f.Add(cursor)
	}
	f.Fuzz(func(t *testing.T, cursor string) {
		for _, kind := range []string{"zset", "list"} {
			score, id, err := parseCursor(kind, cursor)
			switch {
			case err != nil && !errors.Is(err, ErrInvalid):
				t.Errorf("%q of %s: %v does not say that it is invalid", cursor, kind, err)
			case err == nil && kind == "zset" && cursor != "" && score+":"+id != cursor:
				t.Errorf("%q is read as %q and %q", cursor, score, id)
			}
		}
	})
}

func FuzzFacts(f *testing.F) {
	f.Add("01M7Y3SQGNBVX5P66MY8JV56FH:1", "body", "mode:keep", "2", "1", uint8(0xff), uint8(2))
	f.Add("", "", "", "x", "NaN", uint8(0), uint8(0))
	f.Fuzz(func(t *testing.T, entry, body, options, refs, score string, there, groups uint8) {
		part := []any{entry, body, options, refs, score, entry, score}
		for range groups % 4 {
			part = append(part, score, entry, score, score, options, options, score)
		}
		for i := range part { // false and nil stand for what is not there
			if there&(1<<(i%8)) == 0 {
				part[i] = nil
			}
		}
		found := parseFacts(part)
		if len(found.groups) != int(groups%4) || len(found.id) > queue.IDLength {
			t.Errorf("%q is read as %+v", part, found)
		}
		_ = queue.Instant(score)
	})
}
