package testbed

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/detour-collective/dcol/internal/kernel/bpf/cc"
)

// coupled registers dcol's coupled congestion controls, which the kernel lacks, for the hosts of one network. A
// registration lasts until the network is closed. Other networks register the algorithms by other names.
type coupled struct {
	mu         sync.Mutex
	registered map[string]*cc.Registration
}

// named returns the kernel's name of an algorithm. If the algorithm is one of dcol's, named registers it first.
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
