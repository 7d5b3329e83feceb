package exampletest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEveryExampleIsInTheREADME(t *testing.T) {
	readme, err := os.ReadFile("../../../README.md")
	require.NoError(t, err)
	programs, err := filepath.Glob("../../*/main.go")
	require.NoError(t, err)
	require.NotEmpty(t, programs)
	_, section, _ := strings.Cut(string(readme), "\n## Examples\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, program := range programs {
		name := filepath.Base(filepath.Dir(program))
		require.Contains(t, section, "\n    go run ./examples/"+name+"\n")
	}
}
