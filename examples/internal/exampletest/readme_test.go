package exampletest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEveryExampleIsInTheREADME(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	programs, err := filepath.Glob("../../*/main.go")
	require.NoError(t, err)
	require.NotEmpty(t, programs)
	for _, program := range programs {
		dir := filepath.Dir(program)
		command := "go run ./examples/" + filepath.Base(dir)
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil { // a separate module
			command = "go -C examples/" + filepath.Base(dir) + " run ."
		}
		require.Contains(t, string(readme), "\n    "+command+"\n")
	}
}
