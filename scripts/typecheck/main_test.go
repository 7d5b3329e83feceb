package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWhatASystemRefusesIsFound(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":            "module example.com/x\n\ngo 1.25\n",
		"x.go":              "package x\n\nvar N = 1\n",
		"big_test.go":       "package x\n\nconst big int = 1 << 40\n",
		"x_windows_test.go": "package x\n\nvar n = missing\n",
		"sub/sub.go":        "package sub\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ system, pattern, found, fault string }{
		{"linux/386", "./...", "overflows", ""},
		{"windows/amd64", "./...", "undefined: missing", ""},
		{"linux/amd64", "./...", "", ""},
		{"linux/386", "./sub", "", ""},
		{"linux/386", "./nothere", "nothere", ""},
		{"linux", "./...", "", "want SYSTEM/ARCHITECTURE"},
		{"plan10/amd64", "./...", "", "unsupported GOOS/GOARCH"},
	} {
		wrong, err := check(dir, c.system, []string{c.pattern})
		found := strings.Join(wrong, "\n")
		if (c.found == "") != (found == "") || !strings.Contains(found, c.found) {
			t.Errorf("%s %s: found %q, want %q", c.system, c.pattern, found, c.found)
		}
		if (c.fault == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s %s: %v, want %q", c.system, c.pattern, err, c.fault)
		}
	}
}
