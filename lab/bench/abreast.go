package bench

import (
	"errors"
	"io"
	"sync"
)

// abreast measures n things in turns, like inTurns, but on several networks at the same time. It opens and closes the
// networks. It is for measurements that leave most of the processors idle. It returns the results of each thing.
func abreast[N io.Closer, T any](count int, open func() (N, error), repetitions, n int, measure func(s N, i int) (T, error)) (results [][]T, err error) {
	var networks []N
	defer func() {
		for _, s := range networks {
			err = errors.Join(err, s.Close())
		}
	}()
	for range count {
		s, err := open()
		if err != nil {
			return nil, err
		}
		networks = append(networks, s)
	}
	var (
		mu    sync.Mutex
		begun int
		errs  []error
	)
	results = make([][]T, n)
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
				if results[i] = append(results[i], v); err != nil {
					errs = append(errs, err)
				}
				mu.Unlock()
			}
		})
	}
	working.Wait()
	return results, errors.Join(errs...)
}
