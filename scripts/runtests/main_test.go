package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The program runs on a module of two packages, one of which fails.
func TestTheStatusTellsWhetherAllIsWell(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":         "module example.com/x\n\ngo 1.25\n",
		"well/x_test.go": "package well\n\nimport \"testing\"\n\nfunc TestX(t *testing.T) { t.Log(\"not shown\") }\n",
		"bad/x_test.go":  "package bad\n\nimport \"testing\"\n\nfunc TestX(t *testing.T) { t.Fatal(\"the reason\") }\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	program := filepath.Join(dir, "runtests")
	out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	run := func(args ...string) (text string, status int) {
		command := exec.Command(program, args...)
		out, _ := command.CombinedOutput()
		return string(out), command.ProcessState.ExitCode()
	}

	text, status := run("-lanes=2", dir+" ./well", dir+" ./bad")
	require.Equal(t, 1, status, text)
	require.Contains(t, text, "ok    example.com/x/well ")
	require.Contains(t, text, "x_test.go:5: the reason\n")
	require.NotContains(t, text, "not shown")
	require.Regexp(t, `(?m)^FAILED after \d+s: example\.com/x/bad$`, text)
	text, status = run(dir + " ./well")
	require.Zero(t, status, text)
	require.Regexp(t, `(?m)^1 packages, all well, in \d+s$`, text)
	text, status = run(dir + " ./missing")
	require.Equal(t, 1, status, text)
	text, status = run()
	require.Equal(t, 2, status, text)
}
