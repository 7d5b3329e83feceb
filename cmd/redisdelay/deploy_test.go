package main

import (
	"bytes"
	"errors"
	"io"
	"net/http"
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
	secret := filepath.Join(root, "redis-password") // as Kubernetes mounts it
	require.NoError(t, os.WriteFile(secret, []byte("hunter2"), 0o600))
	require.NoError(t, os.Chown(secret, 0, 65532))
	require.NoError(t, os.Chmod(secret, 0o440))
	run := exec.Command("/redisdelay", "relay", "--redis", "127.0.0.1:1", "--from", "a", "--to", "redisstream", "--health", "127.0.0.1:0",
		"--redis-password-file", "/redis-password")
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

// httpProbe, container and manifest are what the examples for Kubernetes consist of.
type httpProbe struct {
	HTTPGet struct {
		Path, Port string
	} `yaml:"httpGet"`
}
type container struct {
	Args  []string
	Env   []struct{ Name, Value string }
	Ports []struct {
		Name string
		Port int `yaml:"containerPort"`
	}
	Liveness  httpProbe `yaml:"livenessProbe"`
	Readiness httpProbe `yaml:"readinessProbe"`
	Security  struct {
		ReadOnly bool `yaml:"readOnlyRootFilesystem"`
	} `yaml:"securityContext"`
	Mounts []struct{ Name, MountPath string } `yaml:"volumeMounts"`
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
				Containers []container
				Volumes    []struct {
					Secret struct {
						Mode os.FileMode `yaml:"defaultMode"`
					}
				}
			}
		}
	}
}

// manifests reads an example for Kubernetes.
func manifests(t *testing.T, path string) (all []manifest) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	for decoder := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var m manifest
		err := decoder.Decode(&m)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		all = append(all, m)
	}
}

// environment returns the settings of a container, with a secret in each file that the Secret has.
func (c container) environment(t *testing.T, secret manifest) (environment []string) {
	t.Helper()
	require.Equal(t, "Secret", secret.Kind)
	for _, e := range c.Env {
		value := e.Value
		if strings.HasPrefix(value, "/secrets/") {
			require.Contains(t, secret.StringData, strings.TrimPrefix(value, "/secrets/"))
			value = file(t, "secret")
		}
		environment = append(environment, e.Name+"="+value)
	}
	return environment
}

// The example for Kubernetes is well formed, names settings that exist, and fits the image.
func TestKubernetesExample(t *testing.T) {
	t.Parallel()
	all := manifests(t, "deploy/kubernetes.yaml")
	require.Len(t, all, 2)
	require.Equal(t, "Secret", all[0].Kind)
	require.Contains(t, all[0].StringData, "redis-password")
	require.Equal(t, "Deployment", all[1].Kind)
	require.Equal(t, all[1].Spec.Selector.MatchLabels, all[1].Spec.Template.Metadata.Labels)
	pod := all[1].Spec.Template.Spec
	require.True(t, pod.Security.NonRoot)
	require.Equal(t, 65532, pod.Security.User)
	require.Equal(t, os.FileMode(0o440), pod.Volumes[0].Secret.Mode, "as in testContainer: the file is root's, and read by the group")
	require.Len(t, pod.Containers, 1)
	c := pod.Containers[0]
	require.True(t, c.Security.ReadOnly)

	a, err := parsed(c.environment(t, all[0]), c.Args[1:]...)
	require.NoError(t, err)
	require.Equal(t, "relay", c.Args[0])
	require.Empty(t, a.settings.unknown())
	_, err = a.relaying.redis.options()
	require.NoError(t, err)
	require.Equal(t, "nats", a.relaying.to.value)
	require.Equal(t, ":8080", *a.relaying.health.address)
	require.Equal(t, 8080, c.Ports[0].Port)
	require.Greater(t, time.Duration(pod.Grace)*time.Second, *a.relaying.stopTimeout+2*time.Second)
	for path, p := range map[string]httpProbe{"/healthz": c.Liveness, "/readyz": c.Readiness} {
		require.Equal(t, path, p.HTTPGet.Path)
		require.Equal(t, c.Ports[0].Name, p.HTTPGet.Port)
	}
}

// The page of the example for Kubernetes asks for its password, and is read-only.
func TestKubernetesExampleOfThePage(t *testing.T) {
	t.Parallel()
	all := manifests(t, "deploy/kubernetes-page.yaml")
	require.Len(t, all, 3)
	require.Equal(t, []string{"Deployment", "Service"}, []string{all[1].Kind, all[2].Kind})
	require.Equal(t, all[1].Spec.Selector.MatchLabels, all[1].Spec.Template.Metadata.Labels)
	pod := all[1].Spec.Template.Spec
	require.True(t, pod.Security.NonRoot)
	require.Equal(t, 65532, pod.Security.User)
	c := pod.Containers[0]
	require.True(t, c.Security.ReadOnly)
	require.Equal(t, []string{"ui"}, c.Args)
	require.Contains(t, c.Env, struct{ Name, Value string }{"REDISDELAY_LISTEN", ":8080"})
	require.Equal(t, 8080, c.Ports[0].Port)

	_, address := page(t, append(c.environment(t, all[0]), "REDISDELAY_REDIS=localhost:1"))
	request, err := http.NewRequest(http.MethodGet, address, nil)
	require.NoError(t, err)
	request.Host = "redisdelay.example.com"
	status, _ := loaded(t, request)
	require.Equal(t, http.StatusUnauthorized, status)
	request.SetBasicAuth("ops", "secret")
	require.Eventually(t, func() bool {
		status, body := loaded(t, request)
		return status == http.StatusBadGateway && strings.Contains(body, "read-only")
	}, patience, 50*time.Millisecond)
}
