package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// tlsSettings are the TLS settings of one connection. name is their prefix.
type tlsSettings struct {
	name                      string
	on, insecure              *bool
	ca, cert, key, serverName *string
}

func declareTLS(s *settings, name, byURL string) *tlsSettings {
	return &tlsSettings{
		name:       name,
		on:         s.yes(name+"-tls", false, "connect with TLS"+byURL),
		ca:         s.text(name+"-tls-ca", "", "file with the certificates (PEM) of the trusted authorities, instead of the system's"),
		cert:       s.text(name+"-tls-cert", "", "file with the client's certificate (PEM)"),
		key:        s.text(name+"-tls-key", "", "file with the key (PEM) of the client's certificate"),
		serverName: s.text(name+"-tls-server-name", "", "host name in the server's certificate, if it is not that of the address"),
		insecure:   s.yes(name+"-tls-insecure", false, "accept any certificate; an attacker in between can read and change everything"),
	}
}

// config returns the TLS configuration, nil without TLS.
func (t *tlsSettings) config(byURL bool) (*tls.Config, error) {
	if !*t.on && !byURL {
		for setting, given := range map[string]bool{
			"-ca": *t.ca != "", "-cert": *t.cert != "", "-key": *t.key != "", "-server-name": *t.serverName != "", "-insecure": *t.insecure,
		} {
			if given {
				return nil, refuse("--%s-tls%s has no effect without --%[1]s-tls", t.name, setting)
			}
		}
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: *t.serverName, InsecureSkipVerify: *t.insecure}
	return config, errors.Join(t.trust(config), t.identify(config))
}

// trust sets the trusted authorities.
func (t *tlsSettings) trust(config *tls.Config) error {
	if *t.ca == "" {
		return nil
	}
	text, err := os.ReadFile(*t.ca)
	if err == nil {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			err = fmt.Errorf("%s has no PEM certificate", *t.ca)
		}
	}
	if err != nil {
		return refuse("--%s-tls-ca: %w", t.name, err)
	}
	return nil
}

// identify sets the client's certificate.
func (t *tlsSettings) identify(config *tls.Config) error {
	if *t.cert == "" && *t.key == "" {
		return nil
	}
	if *t.cert == "" || *t.key == "" {
		return refuse("--%s-tls-cert and --%[1]s-tls-key must be set together", t.name)
	}
	pair, err := tls.LoadX509KeyPair(*t.cert, *t.key)
	if err != nil {
		return refuse("--%s-tls-cert, --%[1]s-tls-key: %w", t.name, err)
	}
	config.Certificates = []tls.Certificate{pair}
	return nil
}
