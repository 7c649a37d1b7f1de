package bench

import (
	"errors"
	"sync"
)

// abreast measures n things in turns, as inTurns does, but on several networks at the same time. It is for measurements
// that leave most of the processors idle. It returns the results of each.
func abreast[T any](networks []*network, repetitions, n int, measure func(s *network, i int) (T, error)) ([][]T, error) {
	var (
		mu     sync.Mutex
		begun  int
		values = make([][]T, n)
		errs   []error
	)
	next := func() (i int, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		if len(errs) > 0 || begun == repetitions*n {
			return 0, false
		}
		i = (begun/n + begun%n) % n
		begun++
		return i, true
	}
	var working sync.WaitGroup
	for _, s := range networks {
		working.Go(func() {
			for i, ok := next(); ok; i, ok = next() {
				v, err := measure(s, i)
				mu.Lock()
				if values[i] = append(values[i], v); err != nil {
					errs = append(errs, err)
				}
				mu.Unlock()
			}
		})
	}
	working.Wait()
	return values, errors.Join(errs...)
}

// openSeveral builds like networks. If one cannot be built, it closes the others.
func openSeveral(count int, open func() (*network, error)) (networks []*network, err error) {
	for range count {
		s, err := open()
		if err != nil {
			return nil, errors.Join(err, closeAll(networks))
		}
		networks = append(networks, s)
	}
	return networks, nil
}

func closeAll(networks []*network) (err error) {
	for _, s := range networks {
		err = errors.Join(err, s.Close())
	}
	return err
}
