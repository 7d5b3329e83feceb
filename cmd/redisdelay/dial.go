package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	dialFor  = 5 * time.Second        // to connect, as go-redis has it
	shakeFor = 500 * time.Millisecond // a handshake that takes longer is doubted
	probeFor = 500 * time.Millisecond
)

// mismatch is the error of a connection where one side speaks TLS and the other does not. It is a
// fault of the settings, so that the command ends at once.
type mismatch struct {
	once   sync.Once
	err    error // guarded by once, until told is closed
	told   chan struct{}
	cancel context.CancelFunc
}

func newMismatch() *mismatch {
	return &mismatch{told: make(chan struct{}), cancel: func() {}}
}

func (m *mismatch) tell(err error) error {
	m.once.Do(func() {
		m.err = err
		close(m.told)
		m.cancel()
	})
	return err
}

// found returns the error, nil without one.
func (m *mismatch) found() error {
	select {
	case <-m.told:
		return m.err
	default:
		return nil
	}
}

// dialer connects to Redis, and finds out if only one side speaks TLS.
type dialer struct {
	settings *redisSettings
	tls      *tls.Config // nil: without TLS
	mismatch *mismatch
}

// watch has a client use the dialer.
func (r *redisSettings) watch(o *redis.UniversalOptions) {
	d := &dialer{r, o.TLSConfig, r.settings.mismatch}
	o.Dialer = d.dial
}

func (d *dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	plain, err := (&net.Dialer{Timeout: dialFor, KeepAlive: 5 * time.Minute}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	if d.tls == nil {
		return &suspect{Conn: plain, d: d, network: network, addr: addr}, nil
	}
	config := d.tls.Clone()
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(addr)
	}
	secure := tls.Client(plain, config)
	shaking, cancel := context.WithTimeout(ctx, shakeFor)
	err = secure.HandshakeContext(shaking)
	cancel()
	if err == nil {
		return secure, nil
	}
	_ = plain.Close()
	if header := (tls.RecordHeaderError{}); errors.As(err, &header) || speaksPlain(ctx, network, addr) {
		return nil, d.mismatch.tell(refuse("%s does not speak TLS: leave out --%s-tls, or use redis:// instead of rediss://", addr, d.settings.name))
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil { // it is only slow
		return tls.DialWithDialer(&net.Dialer{Timeout: dialFor}, network, addr, config)
	}
	return nil, err
}

// speaksPlain tells whether a server answers a PING without TLS.
func speaksPlain(ctx context.Context, network, addr string) bool {
	c, err := (&net.Dialer{Timeout: probeFor}).DialContext(ctx, network, addr)
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(probeFor))
	first := make([]byte, 1)
	_, err = c.Write([]byte("PING\r\n"))
	if err == nil {
		_, err = io.ReadFull(c, first)
	}
	return err == nil && (first[0] == '+' || first[0] == '-')
}

// speaksTLS tells whether a server answers a handshake.
func speaksTLS(network, addr string) bool {
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: probeFor}, network, addr, &tls.Config{InsecureSkipVerify: true})
	if err == nil {
		_ = c.Close()
	}
	alert := tls.AlertError(0)
	return err == nil || errors.As(err, &alert)
}

// suspect is a connection without TLS, until the first answer.
type suspect struct {
	net.Conn
	d             *dialer
	network, addr string
	answered      bool
}

// SyscallConn lets the client see that the server has closed an idle connection.
func (s *suspect) SyscallConn() (syscall.RawConn, error) {
	if c, ok := s.Conn.(syscall.Conn); ok {
		return c.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

// Read is called by one goroutine at a time.
func (s *suspect) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if s.answered {
		return n, err
	}
	const alert = 0x15 // the first byte of a record of TLS with an alert
	timeout, _ := err.(net.Error)
	switch {
	case n > 0 && p[0] != alert:
		s.answered = true
	case timeout != nil && timeout.Timeout():
	case (n > 0 || err != nil) && !errors.Is(err, net.ErrClosed) && speaksTLS(s.network, s.addr):
		return n, s.d.mismatch.tell(refuse("%s speaks TLS: set --%s-tls, or use rediss:// instead of redis://", s.addr, s.d.settings.name))
	}
	return n, err
}
