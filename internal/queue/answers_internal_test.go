package queue

import (
	"slices"
	"testing"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// A reply is read whole, or is an error: nothing of another form ends the process, or is taken for
// something else.

func FuzzGroupSets(f *testing.F) {
	for _, text := range []string{"", Layout, Layout + "\nversion", Layout + "\nversion\nb\na", StreamLayout + "\nversion\ngroup",
		"0\nversion", Layout + "\nnil", Layout + "\n#1\n#2", "nil\nnil", "#3\nversion"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parts, _ := redistest.Parts(text)
		groups, err := readGroups(replied(parts...))
		if err != nil {
			if groups != nil {
				t.Errorf("%q is taken in, and %v", parts, err)
			}
			return
		}
		if len(groups.Names) != len(parts)-2 || !slices.IsSorted(groups.Names) {
			t.Errorf("%q is read as %+v", parts, groups)
		}
		if stream := parts[0] == StreamLayout; stream != groups.Stream || !stream && parts[0] != Layout {
			t.Errorf("%q is read as %+v", parts, groups)
		}
	})
}

func FuzzLost(f *testing.F) {
	for _, text := range []string{"", "01M7Y3SQGNBVX5P66MY8JV56FH", "a\nb", "nil", "#1", "a\nnil\nb"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parts, whole := redistest.Parts(text)
		lost, err := ReadLost(replied(parts...))
		switch {
		case whole && (err != nil || len(lost) != len(parts)):
			t.Errorf("%q is read as %q, and %v", parts, lost, err)
		case err == nil && len(lost) != len(parts):
			t.Errorf("%q is read as %q", parts, lost)
		}
	})
}
