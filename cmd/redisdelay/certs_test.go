package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// certificates are the files of an authority, and of a server and a client with its certificates.
// The server's name is "broker.test", not the address that it has in the tests.
type certificates struct{ ca, serverCert, serverKey, clientCert, clientKey string }

const certifiedName = "broker.test"

func newCertificates(t *testing.T) certificates {
	t.Helper()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, kind string, der []byte) {
		require.NoError(t, os.WriteFile(path(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	}
	template := func(serial int64, name string) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			BasicConstraintsValid: true,
		}
	}
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	authority := template(1, "authority")
	authority.IsCA, authority.KeyUsage = true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, authority, authority, authorityKey.Public(), authorityKey)
	require.NoError(t, err)
	write("ca.pem", "CERTIFICATE", der)

	issue := func(serial int64, name string, usage x509.ExtKeyUsage) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		of := template(serial, name)
		of.KeyUsage, of.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{usage}
		of.DNSNames, of.IPAddresses = []string{certifiedName}, []net.IP{net.IPv4(192, 0, 2, 1)}
		der, err := x509.CreateCertificate(rand.Reader, of, authority, key.Public(), authorityKey)
		require.NoError(t, err)
		write(name+".pem", "CERTIFICATE", der)
		keyDER, err := x509.MarshalPKCS8PrivateKey(key)
		require.NoError(t, err)
		write(name+".key", "PRIVATE KEY", keyDER)
	}
	issue(2, "server", x509.ExtKeyUsageServerAuth)
	issue(3, "client", x509.ExtKeyUsageClientAuth)
	return certificates{path("ca.pem"), path("server.pem"), path("server.key"), path("client.pem"), path("client.key")}
}
