package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// testUnit has systemd check the unit, with the program where it is.
func testUnit(t *testing.T, binary string) {
	text, err := os.ReadFile("deploy/redisdelay-relay.service")
	require.NoError(t, err)
	require.Contains(t, string(text), "ExecStart=/usr/local/bin/redisdelay relay\n")
	require.Contains(t, string(text), "\nDynamicUser=yes\n")
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("no systemd-analyze")
	}
	unit := filepath.Join(t.TempDir(), "redisdelay-relay.service")
	text = bytes.Replace(text, []byte("/usr/local/bin/redisdelay"), []byte(binary), 1)
	require.NoError(t, os.WriteFile(unit, text, 0o644))
	said, err := exec.Command("systemd-analyze", "verify", "--man=no", unit).CombinedOutput()
	require.NoError(t, err, "%s", said)
	require.NotContains(t, string(said), "redisdelay-relay.service", "systemd warns of it")
}

// testContainer runs the program as the image does: as the image's user, in a directory with
// nothing else.
func testContainer(t *testing.T, binary string) {
	text, err := os.ReadFile("deploy/Containerfile")
	require.NoError(t, err)
	require.Contains(t, string(text), "RUN CGO_ENABLED=0 go -C cmd/redisdelay build -trimpath -o /redisdelay .\n", "TestProgram builds it likewise")
	_, image, found := strings.Cut(string(text), "\nFROM scratch\n")
	require.True(t, found)
	require.NotContains(t, image, "RUN ")
	require.Contains(t, image, "USER 65532:65532\nENTRYPOINT [\"/redisdelay\"]\nCMD [\"relay\"]\n")

	if os.Getuid() != 0 {
		t.Skip("only root may change the root directory")
	}
	root := t.TempDir()
	require.NoError(t, os.Chmod(root, 0o755))
	program, err := os.ReadFile(binary)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(root, "redisdelay"), program, 0o755))
	run := exec.Command("/redisdelay", "relay", "--redis", "127.0.0.1:1", "--from", "a", "--to", "redisstream", "--health", "127.0.0.1:0")
	run.Env, run.Dir = []string{}, "/"
	run.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	said, err := run.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, run.Start())
	chunk := make([]byte, 1000)
	n, _ := said.Read(chunk)
	require.Contains(t, string(chunk[:n]), "level=INFO")
	require.NoError(t, run.Process.Signal(syscall.SIGTERM))
	rest, err := io.ReadAll(said)
	require.NoError(t, err)
	_ = run.Wait() // Redis does not answer, which is a failure
	require.NotContains(t, string(rest), "panic")
}

// The example for Kubernetes is well formed, names settings that exist, and fits the image.
func TestKubernetesExample(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("deploy/kubernetes.yaml")
	require.NoError(t, err)
	type probe struct {
		HTTPGet struct {
			Path, Port string
		} `yaml:"httpGet"`
	}
	type manifest struct {
		Kind       string            `yaml:"kind"`
		StringData map[string]string `yaml:"stringData"`
		Spec       struct {
			Selector struct {
				MatchLabels map[string]string `yaml:"matchLabels"`
			}
			Template struct {
				Metadata struct{ Labels map[string]string }
				Spec     struct {
					Grace    int `yaml:"terminationGracePeriodSeconds"`
					Security struct {
						NonRoot bool `yaml:"runAsNonRoot"`
						User    int  `yaml:"runAsUser"`
					} `yaml:"securityContext"`
					Containers []struct {
						Args  []string
						Env   []struct{ Name, Value string }
						Ports []struct {
							Name string
							Port int `yaml:"containerPort"`
						}
						Liveness  probe `yaml:"livenessProbe"`
						Readiness probe `yaml:"readinessProbe"`
						Security  struct {
							ReadOnly bool `yaml:"readOnlyRootFilesystem"`
						} `yaml:"securityContext"`
						Mounts []struct{ Name, MountPath string } `yaml:"volumeMounts"`
					}
				}
			}
		}
	}
	var all []manifest
	for decoder := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var m manifest
		err := decoder.Decode(&m)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		all = append(all, m)
	}
	require.Len(t, all, 2)
	require.Equal(t, "Secret", all[0].Kind)
	require.Contains(t, all[0].StringData, "redis-password")
	require.Equal(t, "Deployment", all[1].Kind)
	require.Equal(t, all[1].Spec.Selector.MatchLabels, all[1].Spec.Template.Metadata.Labels)
	pod := all[1].Spec.Template.Spec
	require.True(t, pod.Security.NonRoot)
	require.Equal(t, 65532, pod.Security.User)
	require.Len(t, pod.Containers, 1)
	c := pod.Containers[0]
	require.True(t, c.Security.ReadOnly)

	var environment []string
	for _, e := range c.Env {
		value := e.Value
		if strings.HasPrefix(value, "/secrets/") {
			require.Contains(t, all[0].StringData, strings.TrimPrefix(value, "/secrets/"))
			value = file(t, "secret")
		}
		environment = append(environment, e.Name+"="+value)
	}
	a, err := parsed(environment, c.Args[1:]...)
	require.NoError(t, err)
	require.Equal(t, "relay", c.Args[0])
	require.Empty(t, a.settings.unknown())
	_, err = a.relaying.redis.options()
	require.NoError(t, err)
	require.Equal(t, "nats", a.relaying.to.value)
	require.Equal(t, ":8080", *a.relaying.health.address)
	require.Equal(t, 8080, c.Ports[0].Port)
	require.Greater(t, time.Duration(pod.Grace)*time.Second, *a.relaying.stopTimeout+2*time.Second)
	for path, p := range map[string]probe{"/healthz": c.Liveness, "/readyz": c.Readiness} {
		require.Equal(t, path, p.HTTPGet.Path)
		require.Equal(t, c.Ports[0].Name, p.HTTPGet.Port)
	}
}
