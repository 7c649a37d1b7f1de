package testbed

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/detour-collective/dcol/internal/kernel/bpf/cc"
)

// coupled are the coupled congestion controls of dcol that hosts of a network use. The kernel has none of its own, and
// knows these until the network is closed. Other networks register them by other names.
type coupled struct {
	mu         sync.Mutex
	registered map[string]*cc.Registration
}

// named returns the kernel's name of an algorithm, which is made known to the kernel if it is one of dcol's.
func (c *coupled) named(algorithm string) (string, error) {
	if !slices.Contains(cc.Algorithms, cc.Algorithm(algorithm)) {
		return algorithm, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r, ok := c.registered[algorithm]; ok {
		return r.Name(), nil
	}
	r, err := cc.Register(cc.Algorithm(algorithm))
	if err != nil {
		return "", fmt.Errorf("congestion control %s: %w", algorithm, err)
	}
	if c.registered == nil {
		c.registered = make(map[string]*cc.Registration)
	}
	c.registered[algorithm] = r
	return r.Name(), nil
}

// close ends the registrations. Connections that use them keep them.
func (c *coupled) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, r := range c.registered {
		errs = append(errs, r.Close())
	}
	c.registered = nil
	return errors.Join(errs...)
}
