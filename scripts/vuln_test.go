package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// vuln runs vuln.sh in a directory with one module, with a database of vulnerabilities and a
// program that stands for govulncheck.
func vuln(t *testing.T, database, program string) (string, error) {
	t.Helper()
	script, err := filepath.Abs("vuln.sh")
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example.com/m\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o644))
	cmd := exec.Command(script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOVULNDB="+database, "GOVULNCHECK=.")
	said, err := cmd.CombinedOutput()
	return string(said), err
}

// Nobody takes a check that did not happen for one without a finding. A finding fails.
func TestVulnerabilitiesAreFoundOrNotChecked(t *testing.T) {
	t.Parallel()
	const finds = "package main\n\nimport \"os\"\n\nfunc main() { os.Exit(3) }\n"
	said, err := vuln(t, "file:///nowhere", finds)
	require.NoError(t, err)
	require.Contains(t, said, "vuln: NOT checked, because file:///nowhere cannot be reached\n")

	database := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(database, "index"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(database, "index", "db.json"), []byte("{}"), 0o644))
	said, err = vuln(t, "file://"+database, finds)
	require.Error(t, err)
	require.Contains(t, said, "vuln: .\n")
	said, err = vuln(t, "file://"+database, "package main\n\nfunc main() {}\n")
	require.NoError(t, err, said)
	require.NotContains(t, said, "NOT checked")
}
