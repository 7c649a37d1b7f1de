package enrol

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

// connectWithin bounds the time to connect: enough for four SYNs.
const connectWithin = 8 * time.Second

// explainConnect adds to an error why a coordinator was not reached, and what to do.
func explainConnect(err error, address string) error {
	_, port, splitErr := net.SplitHostPort(address)
	if splitErr != nil {
		return err
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer: TCP port %s must be open in its firewall and its router, and towards it on this host (%w)", port, err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("TCP port %s refuses connections: its agent does not run, or a firewall blocks the port (%w)", port, err)
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return fmt.Errorf("this host has no route to it, or a firewall blocks it (%w)", err)
	}
	return err
}

// explainHandshake adds to an error why the TLS handshake failed.
func explainHandshake(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("it accepts connections but does not answer: it is overloaded, or packets of full size do not get through (%w)", err)
	case strings.Contains(err.Error(), "no application protocol"):
		return fmt.Errorf("something else answers there: %w", err)
	}
	return fmt.Errorf("the handshake: %w", err)
}
